"""A place in the past as people write it: a time, so long ago, or a position of the log."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tailrace.cli.quantity import parse_duration
from tailrace.errors import ConfigError
from tailrace.model import Offset
from tailrace.streams.replay.request import Bound, to_us

_POSITION: Final = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}(:\d+)?")
_AGO: Final = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|d)")


def parse_moment(text: str, option: str, *, now: datetime) -> Bound:
    """Read it; raises ConfigError. A time without a zone is UTC."""
    try:
        if _POSITION.fullmatch(text):
            return Offset.parse(text)
        if _AGO.fullmatch(text):
            return to_us(now - parse_duration(text))
        moment = now if text == "now" else datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is neither a time nor a position",
            hint="2026-01-15 10:00:00+00, 90m (so long ago), now, or 0/16B3748",
        ) from error
    return to_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
