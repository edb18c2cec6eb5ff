"""Single pgoutput frames, protocol version 1, as values.

The frames of rows are never parsed here: `decode` reads those by the buffer. This module reads the
few frames around them: Begin, Commit, Relation, Truncate, Message, Type. Layout:
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tailrace.errors import SegmentCorrupt
from tailrace.model import Column, Relation, ReplicaIdentity

MESSAGE_PREFIX: Final = b"tailrace."
"""Logical messages of ours start with this; all others are dropped at capture."""

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: Postgres counts from there."""


class Tag(IntEnum):
    """The first byte of a frame."""

    BEGIN = ord("B")
    COMMIT = ord("C")
    ORIGIN = ord("O")
    RELATION = ord("R")
    TYPE = ord("Y")
    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")
    TRUNCATE = ord("T")
    MESSAGE = ord("M")


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a transaction. `final_lsn` is where its commit record starts: never a position
    of ours.
    """

    final_lsn: int
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. `end_lsn` is its position in the log."""

    commit_lsn: int
    end_lsn: int
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class Message:
    """A logical message, written by `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class TypeName:
    """The name of a type that is not built in."""

    oid: int
    schema: str
    name: str


class _Cursor:
    """Reads a frame from left to right; a frame that ends too early is a SegmentCorrupt."""

    def __init__(self, frame: bytes, tag: Tag) -> None:
        if frame[:1] != bytes([tag]):
            raise SegmentCorrupt(f"expected a {tag.name.lower()} frame, found {frame[:1]!r}")
        self._frame = frame
        self._tag = tag
        self._at = 1

    def unpack(self, layout: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(layout, self._frame, self._at)
        except struct.error as error:
            raise self._corrupt() from error
        self._at += struct.calcsize(layout)
        return values

    def raw_string(self) -> bytes:
        end = self._frame.find(b"\0", self._at)
        if end < 0:
            raise self._corrupt()
        text = self._frame[self._at : end]
        self._at = end + 1
        return text

    def string(self) -> str:
        # Names in a database of encoding SQL_ASCII may hold any bytes: keep them distinct and
        # printable.
        return self.raw_string().decode("utf-8", "backslashreplace")

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._frame):
            raise self._corrupt()
        part = self._frame[self._at : self._at + size]
        self._at += size
        return part

    def _corrupt(self) -> SegmentCorrupt:
        return SegmentCorrupt(f"a {self._tag.name.lower()} frame ends too early")


def parse_begin(frame: bytes) -> Begin:
    """Read a `B` frame."""
    final_lsn, timestamp, xid = _Cursor(frame, Tag.BEGIN).unpack(">QqI")
    return Begin(final_lsn, timestamp + POSTGRES_EPOCH_US, xid)


def parse_commit(frame: bytes) -> Commit:
    """Read a `C` frame."""
    _flags, commit_lsn, end_lsn, timestamp = _Cursor(frame, Tag.COMMIT).unpack(">BQQq")
    return Commit(commit_lsn, end_lsn, timestamp + POSTGRES_EPOCH_US)


def parse_relation(frame: bytes) -> Relation:
    """Read an `R` frame. The key is what the replica identity flags, until the catalog says
    better.
    """
    cursor = _Cursor(frame, Tag.RELATION)
    (oid,) = cursor.unpack(">I")
    # pg_catalog is sent as an empty name.
    schema = cursor.string() or "pg_catalog"
    name = cursor.string()
    identity, count = cursor.unpack(">BH")
    columns = []
    for _ in range(count):
        (flags,) = cursor.unpack(">B")
        column = cursor.string()
        type_oid, typmod = cursor.unpack(">Ii")
        columns.append(Column(column, type_oid, typmod, bool(flags & 1)))
    try:
        replica_identity = ReplicaIdentity(chr(identity))
    except ValueError as error:
        raise SegmentCorrupt(f"unknown replica identity {identity} in a relation frame") from error
    key = tuple(column.name for column in columns if column.in_identity)
    return Relation(oid, schema, name, replica_identity, tuple(columns), key)


def relation_frame(relation: Relation) -> bytes:
    """An `R` frame as Postgres would send it: what `parse_relation` reads."""
    schema = "" if relation.schema == "pg_catalog" else relation.schema
    parts = [
        *(bytes([Tag.RELATION]), struct.pack(">I", relation.oid)),
        *(_string(schema), _string(relation.name)),
        *(relation.identity.encode(), struct.pack(">H", len(relation.columns))),
    ]
    for column in relation.columns:
        parts += [bytes([column.in_identity]), _string(column.name)]
        parts.append(struct.pack(">Ii", column.type_oid, column.typmod))
    return b"".join(parts)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def parse_truncate(frame: bytes) -> tuple[int, ...]:
    """Read a `T` frame: the oids of the tables it empties, in order."""
    cursor = _Cursor(frame, Tag.TRUNCATE)
    count, _options = cursor.unpack(">IB")
    if count * 4 > len(frame):
        raise SegmentCorrupt("a truncate frame names more tables than it has room for")
    return cursor.unpack(f">{count}I")


def parse_message(frame: bytes) -> Message:
    """Read an `M` frame."""
    cursor = _Cursor(frame, Tag.MESSAGE)
    flags, lsn = cursor.unpack(">BQ")
    prefix = cursor.raw_string()
    (size,) = cursor.unpack(">I")
    return Message(bool(flags & 1), lsn, prefix, cursor.take(size))


def parse_type(frame: bytes) -> TypeName:
    """Read a `Y` frame."""
    cursor = _Cursor(frame, Tag.TYPE)
    (oid,) = cursor.unpack(">I")
    return TypeName(oid, cursor.string() or "pg_catalog", cursor.string())
