"""Values as JSON that any parser reads: positions and times as text, nothing rounded, no NaN."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time

from tailrace.model import Lsn, Offset


def json_text(value: object, *, indent: int | None = None) -> str:
    r"""The text, on one line unless `indent` is given; what JSON cannot hold is as Postgres prints
    it.

    >>> json_text({"at": Lsn(0x16B3748), "data": b"hi", "ratio": float("inf")})
    '{"at": "0/16B3748", "data": "\\\\x6869", "ratio": "Infinity"}'
    """
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    match value:
        case None | bool() | str():
            return value
        case Lsn() | Offset():
            return str(value)
        case int():
            return value
        case float():
            return value if math.isfinite(value) else _not_finite(value)
        case bytes():
            return f"\\x{value.hex()}"
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in names}
    return str(value)


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
