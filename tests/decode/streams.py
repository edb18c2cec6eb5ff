"""Hypothesis strategies: random tables, and random streams of their changes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

from tailrace.model import Column, NamedType, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tests.decode import wire

Draw = Callable[[st.SearchStrategy[Any]], Any]

UNTIMED: Final = settings(deadline=None, max_examples=60)
"""Time never decides a test."""

OID_FIRST: Final = 16_400
ENUM_OID: Final = 99_999
DOMAIN_OID: Final = 99_998
LSN_STEP: Final = 100


def numeric(precision: int, scale: int) -> int:
    """The typmod of `numeric(precision, scale)`."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


DOMAIN: Final = NamedType(DOMAIN_OID, "price", PgType.NUMERIC, numeric(12, 2))


def _signed(bits: int) -> st.SearchStrategy[str]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1).map(str)


def _float_text(value: float) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))


def _decimal_text(precision: int, scale: int) -> st.SearchStrategy[str]:
    def write(unscaled: int) -> str:
        digits = f"{abs(unscaled):0{scale + 1}d}"
        text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        return f"-{text}" if unscaled < 0 else text

    return st.integers(1 - 10**precision, 10**precision - 1).map(write)


def _date_text(value: date) -> str:
    return value.isoformat()


def _timestamp_text(value: datetime) -> str:
    text = value.isoformat(" ")
    return text.rstrip("0") if value.microsecond else text


_ZONES = st.sampled_from(["+00", "+00", "+00", "+05:30", "-08", "+05:53:28"])
_WORDS = st.sampled_from(["NaN", "Infinity", "-Infinity", "infinity", "-infinity", "", "nonsense"])
_NUMBERS = st.sampled_from(["0x1F", "1e5", "12345678901234567890123456789012345678901", "1-2", "-"])
_DAYS = st.sampled_from(
    ["0044-03-15 BC", "10000-01-01", "5874897-12-31", "2021-02-30", "0000-01-01"]
)
_HOURS = st.sampled_from(
    ["0044-03-15 10:00:00 BC", "294276-12-31 23:59:59.999999", "2021-01-01 24:00:00"]
)
_BYTES = st.binary(max_size=12)

_TYPES: Final[dict[tuple[int, int], st.SearchStrategy[Any]]] = {
    (PgType.BOOL, -1): st.sampled_from(["t", "f"]) | _WORDS,
    (PgType.INT2, -1): _signed(16) | _signed(17) | _NUMBERS,
    (PgType.INT4, -1): _signed(32) | _NUMBERS,
    (PgType.INT8, -1): _signed(64) | _signed(66) | _WORDS,
    (PgType.FLOAT4, -1): st.floats(width=32).map(_float_text),
    (PgType.FLOAT8, -1): st.floats().map(_float_text) | st.sampled_from(["", "nonsense", "0x1"]),
    (PgType.NUMERIC, numeric(12, 2)): _decimal_text(12, 2) | _WORDS | _decimal_text(13, 2),
    (PgType.NUMERIC, numeric(38, 38)): _decimal_text(38, 38) | _decimal_text(38, 20),
    (PgType.NUMERIC, numeric(5, 0)): _decimal_text(5, 0) | _NUMBERS,
    (PgType.NUMERIC, numeric(5, -2)): _decimal_text(7, 0) | _WORDS,
    (PgType.NUMERIC, numeric(50, 2)): _decimal_text(50, 2),
    (PgType.NUMERIC, -1): _decimal_text(60, 30) | _WORDS,
    (PgType.TEXT, -1): st.text(max_size=12) | _BYTES,
    (PgType.VARCHAR, 24): st.text(max_size=20),
    (PgType.BYTEA, -1): _BYTES.map(lambda value: f"\\x{value.hex()}")
    | st.sampled_from(["\\xabc", "\\xzz", "\\000a", "", "\\x"]),
    (PgType.DATE, -1): st.dates().map(_date_text) | _WORDS | _DAYS,
    (PgType.TIMESTAMP, -1): st.datetimes().map(_timestamp_text) | _WORDS | _HOURS | _DAYS,
    (PgType.TIMESTAMPTZ, -1): st.builds(str.__add__, st.datetimes().map(_timestamp_text), _ZONES)
    | _WORDS
    | _HOURS.map(lambda text: text + "+00"),
    (PgType.TIME, -1): st.sampled_from(["24:00:00", "10:11:12.5"]),
    (ENUM_OID, -1): st.text(max_size=5) | _BYTES,
    (DOMAIN_OID, -1): _decimal_text(12, 2) | _WORDS,
}

_NAMES = ["id", "Price", "größe", "a.b", "c d"]
_COLUMN_KINDS = st.tuples(st.sampled_from(sorted(_TYPES)), st.booleans())


@st.composite
def relations(draw: Draw, oid: int, name: str) -> Relation:
    """A table of up to five columns, or of none."""
    kinds = draw(st.lists(_COLUMN_KINDS, max_size=len(_NAMES)))
    columns = tuple(
        Column(each, int(type_oid), typmod, in_identity)
        for each, ((type_oid, typmod), in_identity) in zip(_NAMES, kinds, strict=False)
    )
    key = tuple(column.name for column in columns if column.in_identity)
    identity = draw(st.sampled_from(list(ReplicaIdentity)))
    return Relation(oid, "public", name, identity, columns, key)


@dataclass(slots=True)
class Stream:
    """Frames, and what a reader must know to decode them."""

    initial: dict[int, Relation] = field(default_factory=dict)
    versions: dict[bytes, Relation] = field(default_factory=dict)
    frames: list[bytes] = field(default_factory=list)
    lsn: int = 0

    def to_frames(self) -> Frames:
        """As one run; a frame's position is its number, so that errors can be told apart."""
        return Frames.of(self.frames, list(range(len(self.frames))))


@st.composite
def streams(draw: Draw, *, transactions_max: int = 3, changes_max: int = 6) -> Stream:
    """A sound stream of whole transactions over one to three tables."""
    stream = Stream()
    in_force: dict[int, Relation] = {}
    for number in range(draw(st.integers(1, 3))):
        table = draw(relations(OID_FIRST + number, f"table_{number}"))
        in_force[table.oid] = table
        if draw(st.booleans()):
            stream.initial[table.oid] = table
    for _ in range(draw(st.integers(0, transactions_max))):
        _add_transaction(draw, stream, in_force, changes_max)
    return stream


def _add_transaction(
    draw: Draw, stream: Stream, in_force: dict[int, Relation], changes_max: int
) -> None:
    ts_us = draw(st.integers(0, 10**15))
    stream.frames.append(wire.begin(draw(st.integers(0, 2**32 - 1)), ts_us))
    announced = set(stream.initial) | {
        struct.unpack_from(">I", frame, 1)[0] for frame in stream.frames if frame[:1] == b"R"
    }
    for _ in range(draw(st.integers(0, changes_max))):
        oid = draw(st.sampled_from(sorted(in_force)))
        if oid not in announced or draw(st.integers(0, 5)) == 0:
            _announce(draw, stream, in_force, oid)
            announced.add(oid)
        frame = draw(_changes(in_force[oid]))
        if frame[:1] == b"T":
            frame = wire.truncate(*sorted(announced & set(in_force)))
        stream.frames.append(frame)
        if draw(st.integers(0, 9)) == 0:
            stream.frames.append(draw(_BYSTANDERS))
    stream.lsn += draw(st.integers(1, LSN_STEP))
    stream.frames.append(wire.commit(stream.lsn, ts_us))


_BYSTANDERS = st.sampled_from([wire.message(), wire.type_name(ENUM_OID, "mood"), wire.origin()])


def _announce(draw: Draw, stream: Stream, in_force: dict[int, Relation], oid: int) -> None:
    """Send a table's Relation frame: the same shape again, or another one."""
    if draw(st.booleans()):
        in_force[oid] = draw(relations(oid, in_force[oid].name))
    table = in_force[oid]
    frame = wire.relation(table)
    stream.frames.append(frame)
    if frame in stream.versions:
        in_force[oid] = stream.versions[frame]
    elif draw(st.booleans()):
        # The catalog knew more of it than the frame says.
        stream.versions[frame] = in_force[oid] = replace(
            table, type_names=(NamedType(ENUM_OID, "mood"), DOMAIN)
        )


_KINDS = st.sampled_from(["insert", "update", "update_key", "update_full", "delete", "truncate"])


@st.composite
def _changes(draw: Draw, table: Relation) -> bytes:
    kind = draw(_KINDS)
    if kind == "truncate":
        return wire.truncate(table.oid)
    if kind == "insert":
        return wire.insert(table.oid, _row(draw, table))
    if kind == "update":
        return wire.update(table.oid, _row(draw, table))
    old = _row(draw, table)
    key = [
        cell if column.in_identity else None
        for column, cell in zip(table.columns, old, strict=True)
    ]
    if kind == "update_key":
        return wire.update(table.oid, _row(draw, table), key=key)
    if kind == "update_full":
        return wire.update(table.oid, _row(draw, table), old=old)
    return (
        wire.delete(table.oid, key=key) if draw(st.booleans()) else wire.delete(table.oid, old=old)
    )


CELLS = {kind: texts | st.sampled_from([None, wire.UNSENT]) for kind, texts in _TYPES.items()}


def _row(draw: Draw, table: Relation) -> list[wire.Cell]:
    return [draw(CELLS[column.type_oid, column.typmod]) for column in table.columns]
