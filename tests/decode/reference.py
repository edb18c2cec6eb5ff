"""The decoder as one would first write it: a row at a time, in plain Python.

It is the oracle that `tailrace.decode` is compared with, and the slow side of the benchmark. It
shares the parsers of single frames and the schema with the decoder, and nothing else.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from tailrace.decode import OpenTransaction
from tailrace.decode.types import arrow_type
from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn, Offset, Relation
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import parse_begin, parse_commit, parse_relation, parse_truncate

Row: TypeAlias = dict[str, Any]

UNSENT = object()
UNHELD = object()
"""A value that its column's type cannot hold."""


@dataclass
class ReferenceChanges:
    """As TableChanges, with rows as dictionaries."""

    relation: Relation
    rows: list[Row] = field(default_factory=list)


class _Change(NamedTuple):
    frame: bytes
    oid: int
    relation: Relation | None
    lsn: int


class _Place(NamedTuple):
    commit_lsn: int
    ordinal: int
    commit_ts_us: int
    xid: int


def reference_decode(
    frames: Frames,
    *,
    initial: Mapping[int, Relation],
    versions: Mapping[bytes, Relation],
    after: Offset,
    upto: Offset,
    tables: Container[str] | None = None,
    columns: Collection[str] | None = None,
    open_transaction: OpenTransaction | None = None,
) -> list[ReferenceChanges]:
    """What `decode` must give for the same arguments."""
    result: list[ReferenceChanges] = []
    current: dict[int, ReferenceChanges] = {}
    for change, place in _changes(frames, initial, versions, open_transaction):
        if not after < Offset(Lsn(place.commit_lsn), place.ordinal) <= upto:
            continue
        if change.relation is None:
            raise SegmentCorrupt(f"unknown table at {Lsn(change.lsn)}")
        known = current.get(change.oid)
        if known is None or known.relation != change.relation:
            known = current[change.oid] = ReferenceChanges(change.relation)
            if tables is None or change.relation.qualified in tables:
                result.append(known)
        if tables is None or change.relation.qualified in tables:
            known.rows.append(_row(change, place, columns))
    return result


def _changes(
    frames: Frames,
    initial: Mapping[int, Relation],
    versions: Mapping[bytes, Relation],
    part: OpenTransaction | None,
) -> Iterator[tuple[_Change, _Place]]:
    """Every change with its place; a transaction's place is known only at its Commit."""
    in_force = dict(initial)
    pending: list[_Change] | None = None if part is None else []
    xid = last_lsn = 0
    for index in range(len(frames)):
        frame, lsn = frames.frame(index), int(frames.lsn[index])
        match frame[:1]:
            case b"B":
                _demand(len(frame) >= 21 and (index == 0 if part else pending is None), lsn)
                _demand(part is None or part.first_ordinal == 0, lsn)
                xid, pending = parse_begin(frame).xid, []
            case b"C":
                _demand(len(frame) >= 26 and pending is not None, lsn)
                end = parse_commit(frame)
                if part:
                    _demand(index == len(frames) - 1 and end.end_lsn == part.commit_lsn, lsn)
                    continue
                _demand(last_lsn < end.end_lsn < 1 << 63, lsn)
                _demand(-62135596800 * 10**6 <= end.commit_ts_us < 253402300800 * 10**6, lsn)
                for ordinal, change in enumerate(pending or ()):
                    yield change, _Place(end.end_lsn, ordinal, end.commit_ts_us, xid)
                last_lsn, pending = end.end_lsn, None
            case b"R":
                relation = versions.get(frame) or parse_relation(frame)
                in_force[relation.oid] = relation
            case b"I" | b"U" | b"D":
                _demand(len(frame) >= 8 and pending is not None, lsn)
                (oid,) = struct.unpack_from(">I", frame, 1)
                assert pending is not None
                pending.append(_Change(frame, oid, in_force.get(oid), lsn))
            case b"T":
                oids = parse_truncate(frame)
                _demand(len(frame) == 6 + 4 * len(oids) and pending is not None, lsn)
                for oid in oids:
                    assert pending is not None
                    pending.append(_Change(frame, oid, in_force.get(oid), lsn))
            case tag:
                _demand(tag in (b"Y", b"O", b"M"), lsn)
    if part is None:
        _demand(pending is None, 0)
        return
    for number, change in enumerate(pending or ()):
        place = _Place(part.commit_lsn, part.first_ordinal + number, part.commit_ts_us, part.xid)
        yield change, place


def _demand(sound: bool, lsn: int) -> None:
    if not sound:
        raise SegmentCorrupt(f"damaged frame at {Lsn(lsn)}")


def _row(change: _Change, place: _Place, columns: Collection[str] | None) -> Row:
    assert change.relation is not None
    op, before, now = _tuples(change)
    texts: list[tuple[str, str]] = []
    unchanged: list[str] = []
    row: Row = {}
    old_row: Row | None = None if before is None else {}
    wanted = [c for c in change.relation.columns if columns is None or c.name in columns]
    kinds = {column.name: arrow_type(change.relation, column) for column in wanted}
    number_of = {column.name: number for number, column in enumerate(change.relation.columns)}
    for column in wanted:
        cell = now[number_of[column.name]] if now is not None else None
        if cell is UNSENT and op != "delete":
            unchanged.append(column.name)
        row[column.name] = _typed(kinds[column.name], cell, column.name, texts)
    for column in wanted:
        if before is not None and old_row is not None:
            cell = before[number_of[column.name]]
            name = f"_before.{column.name}"
            old_row[column.name] = _typed(kinds[column.name], cell, name, texts)
    return row | {
        "_op": op,
        "_commit_lsn": place.commit_lsn,
        "_ordinal": place.ordinal,
        "_commit_ts": _datetime(place.commit_ts_us),
        "_xid": place.xid,
        "_origin": "wal",
        "_unchanged": unchanged or None,
        "_before": old_row,
        "_text": texts or None,
    }


def _tuples(change: _Change) -> tuple[str, list[Any] | None, list[Any] | None]:
    """The operation, the old tuple and the tuple that the plain columns show."""
    frame, relation = change.frame, change.relation
    assert relation is not None
    tag, mark = frame[:1], frame[5:6]
    if tag == b"T":
        return "truncate", None, None
    _demand(mark in {b"I": b"N", b"U": b"NKO", b"D": b"KO"}[tag], change.lsn)
    first, at = _read_tuple(frame, 6, len(relation.columns), change.lsn)
    if tag == b"U" and mark != b"N":
        _demand(frame[at : at + 1] == b"N", change.lsn)
        second, at = _read_tuple(frame, at + 1, len(relation.columns), change.lsn)
        _demand(at == len(frame), change.lsn)
        filled = [
            old if new is UNSENT and isinstance(old, bytes) else new
            for old, new in zip(first, second, strict=True)
        ]
        return "update", first, filled
    _demand(at == len(frame), change.lsn)
    if tag == b"D":
        return "delete", first, first
    return "insert" if tag == b"I" else "update", None, first


def _read_tuple(frame: bytes, at: int, count: int, lsn: int) -> tuple[list[Any], int]:
    _demand(at + 2 <= len(frame) and struct.unpack_from(">H", frame, at)[0] == count, lsn)
    at += 2
    cells: list[Any] = []
    for _ in range(count):
        kind = frame[at : at + 1]
        at += 1
        if kind == b"n":
            cells.append(None)
        elif kind == b"u":
            cells.append(UNSENT)
        else:
            _demand(kind == b"t" and at + 4 <= len(frame), lsn)
            (size,) = struct.unpack_from(">I", frame, at)
            at += 4 + size
            _demand(at <= len(frame), lsn)
            cells.append(frame[at - size : at])
    return cells, at


def _typed(kind: pa.DataType, cell: object, name: str, texts: list[tuple[str, str]]) -> object:
    if not isinstance(cell, bytes):
        return None
    try:
        text = cell.decode()
    except UnicodeDecodeError:
        texts.append((name, "\\x" + cell.hex()))
        return None
    value = value_of(text, kind)
    if value is UNHELD:
        texts.append((name, text))
        return None
    return value


def value_of(text: str, target: pa.DataType) -> object:
    """The Python value of Postgres' text, or UNHELD."""
    if pa.types.is_string(target):
        return text
    if pa.types.is_boolean(target):
        return {"t": True, "f": False}.get(text, UNHELD)
    if pa.types.is_binary(target):
        return bytes.fromhex(text[2:]) if re.fullmatch(r"\\x([0-9a-f]{2})*", text) else UNHELD
    try:
        if pa.types.is_integer(target):
            return _integer(text, target.bit_width)
        if pa.types.is_floating(target):
            return _float(text, target.bit_width)
        if pa.types.is_decimal(target):
            return _decimal(text, target.precision, target.scale)
        if pa.types.is_date(target):
            return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else UNHELD
        return _timestamp(text, isinstance(target, pa.TimestampType) and target.tz is not None)
    except (ValueError, OverflowError):
        return UNHELD


def _integer(text: str, bits: int) -> object:
    value = int(text) if re.fullmatch(r"-?[0-9]+", text) else None
    return value if value is not None and -(1 << bits - 1) <= value < 1 << bits - 1 else UNHELD


def _float(text: str, bits: int) -> object:
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|-?Infinity|NaN", text):
        return UNHELD
    if bits == 64:
        return float(text)
    value: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return value


def _decimal(text: str, precision: int, scale: int) -> object:
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text):
        return UNHELD
    fraction = text.partition(".")[2]
    unscaled = int(text.replace(".", ""))
    if len(fraction) > scale or abs(unscaled) >= 10 ** (precision - scale + len(fraction)):
        return UNHELD
    return Decimal(text)


def _timestamp(text: str, zoned: bool) -> object:
    zone = r"[+-]\d\d(:\d\d)?" if zoned else ""
    if not re.fullmatch(rf"\d{{4}}-\d\d-\d\d ([01]\d|2[0-3]):\d\d:\d\d(\.\d{{1,6}})?{zone}", text):
        return UNHELD
    value = datetime.fromisoformat(text)
    return value.astimezone(UTC) if zoned else value


def _datetime(us: int) -> datetime:
    seconds, rest = divmod(us, 10**6)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
