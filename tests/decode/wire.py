"""Writes pgoutput frames, so that tests can say what a stream holds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from tailrace.model import Relation

UNSENT: Final = object()
"""A large value that did not change and was not sent."""

Cell: TypeAlias = object
"""Text or bytes, None for NULL, or UNSENT."""

Row: TypeAlias = Sequence[Cell]


def begin(xid: int = 700, ts_us: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", 0, ts_us, xid)


def commit(end_lsn: int, ts_us: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, max(end_lsn - 8, 0), end_lsn, ts_us)


def relation(value: Relation) -> bytes:
    head = struct.pack(">I", value.oid) + _name(value.schema) + _name(value.name)
    head += value.identity.value.encode() + struct.pack(">H", len(value.columns))
    return (
        b"R"
        + head
        + b"".join(
            bytes([column.in_identity])
            + _name(column.name)
            + struct.pack(">Ii", column.type_oid, column.typmod)
            for column in value.columns
        )
    )


def insert(oid: int, new: Row) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + _tuple(new)


def update(oid: int, new: Row, *, key: Row | None = None, old: Row | None = None) -> bytes:
    before = b"" if key is None else b"K" + _tuple(key)
    before += b"" if old is None else b"O" + _tuple(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + _tuple(new)


def delete(oid: int, *, key: Row | None = None, old: Row | None = None) -> bytes:
    before = b"K" + _tuple(key) if key is not None else b"O" + _tuple(old or ())
    return b"D" + struct.pack(">I", oid) + before


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)


def message(prefix: str = "tailrace.test", content: bytes = b"") -> bytes:
    return (
        b"M" + struct.pack(">BQ", 1, 0) + _name(prefix) + struct.pack(">I", len(content)) + content
    )


def type_name(oid: int, name: str, schema: str = "public") -> bytes:
    return b"Y" + struct.pack(">I", oid) + _name(schema) + _name(name)


def origin(name: str = "elsewhere") -> bytes:
    return b"O" + struct.pack(">Q", 0) + _name(name)


def _name(text: str) -> bytes:
    return text.encode() + b"\0"


def _tuple(row: Row) -> bytes:
    return struct.pack(">H", len(row)) + b"".join(map(_cell, row))


def _cell(value: Cell) -> bytes:
    if value is None:
        return b"n"
    if value is UNSENT:
        return b"u"
    text = value.encode() if isinstance(value, str) else value
    assert isinstance(text, bytes)
    return b"t" + struct.pack(">I", len(text)) + text
