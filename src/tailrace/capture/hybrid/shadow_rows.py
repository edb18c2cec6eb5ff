"""Two captures of the same transactions, compared: what the triggers say and what the WAL says.

Per transaction and key both must tell the same changes in the same order. A value that Postgres
does not repeat because it did not change cannot be compared, and is taken for equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tailrace.model import Relation
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import parse_begin, parse_relation, parse_truncate

Values: TypeAlias = tuple[bytes | None, ...]
Key: TypeAlias = tuple[int, Values]

UNSENT: Final = b"u"
"""Stands for a value that is in no frame; the text of a value has a `t` before it."""

_ROWS: Final = frozenset({b"I", b"U", b"D", b"T"})


@dataclass(frozen=True, slots=True)
class Told:
    """One change of a row, as one of the captures tells it."""

    op: str
    old: Values | None
    new: Values | None


class WholeTransactions:
    """Frames that are read, up to a size. `too_large` are the transactions that did not fit: of
    them only what describes the tables is kept: that is said once, before all that follow.
    """

    def __init__(self, bytes_max: int) -> None:
        self.is_any = False
        self.frames: list[bytes] = []
        self.lsns: list[int] = []
        self.too_large: list[int] = []
        self._bytes_left = bytes_max
        self._xid = self._begun_at = 0

    def add(self, frame: bytes, lsn: int) -> None:
        """The next frame of the stream."""
        self.is_any = True
        tag = frame[:1]
        if tag == b"B":
            self._xid, self._begun_at = parse_begin(frame).xid, len(self.frames)
        is_row = tag in _ROWS
        if is_row and self._xid in self.too_large[-1:]:
            return
        self.frames.append(frame)
        self.lsns.append(lsn)
        self._bytes_left -= len(frame)
        if is_row and self._bytes_left < 0:
            self._let_pass()

    def _let_pass(self) -> None:
        kept = [
            at for at in range(self._begun_at, len(self.frames)) if self.frames[at][:1] not in _ROWS
        ]
        self._bytes_left += sum(map(len, self.frames[self._begun_at :]))
        self.frames[self._begun_at :] = [self.frames[at] for at in kept]
        self.lsns[self._begun_at :] = [self.lsns[at] for at in kept]
        self.too_large.append(self._xid)


def changes_by_key(frames: Frames, table_oid: int) -> dict[Key, list[Told]]:
    """The changes of one table by transaction and key; a TRUNCATE is of no key."""
    found: dict[Key, list[Told]] = defaultdict(list)
    relation: Relation | None = None
    xid = 0
    for number in range(len(frames)):
        frame = frames.frame(number)
        tag = frame[:1]
        if tag == b"B":
            xid = parse_begin(frame).xid
        elif tag == b"R" and _oid(frame) == table_oid:
            relation = parse_relation(frame)
        elif tag == b"T" and table_oid in parse_truncate(frame):
            found[xid, ()].append(Told("T", None, None))
        elif tag in (b"I", b"U", b"D") and _oid(frame) == table_oid:
            assert relation is not None, "Postgres describes a table before its rows"
            told = _told(frame)
            found[xid, _key(told, relation)].append(told)
    return found


def difference(by_trigger: dict[Key, list[Told]], by_wal: dict[Key, list[Told]]) -> str:
    """The first thing that differs, in words; empty if nothing does."""
    for key in by_trigger.keys() | by_wal.keys():
        mine, other = by_trigger.get(key, []), by_wal.get(key, [])
        if len(mine) != len(other) or not all(map(_agree, mine, other)):
            xid, values = key
            row = ", ".join((value or b"NULL")[1:].decode("utf-8", "replace") for value in values)
            return (
                f"transaction {xid}, key ({row}): triggers tell {_ops(mine)}, "
                f"the wal tells {_ops(other)}"
            )
    return ""


def _agree(mine: Told, other: Told) -> bool:
    return mine.op == other.op and _same(mine.old, other.old) and _same(mine.new, other.new)


def _same(mine: Values | None, other: Values | None) -> bool:
    if mine is None or other is None:
        return mine is other
    return len(mine) == len(other) and all(
        a == b or UNSENT in (a, b) for a, b in zip(mine, other, strict=True)
    )


def _ops(told: Sequence[Told]) -> str:
    return "".join(each.op for each in told) or "nothing"


def _key(told: Told, relation: Relation) -> Values:
    values = told.new if told.new is not None else told.old
    assert values is not None
    places = [relation.column_names.index(name) for name in relation.key]
    return tuple(values[place] for place in places)


def _oid(frame: bytes) -> int:
    return int.from_bytes(frame[1:5], "big")


def _told(frame: bytes) -> Told:
    rows = dict(_rows(frame))
    return Told(frame[:1].decode(), rows.get(b"K", rows.get(b"O")), rows.get(b"N"))


def _rows(frame: bytes) -> Iterator[tuple[bytes, Values]]:
    at = 5
    while at < len(frame):
        kind, count = frame[at : at + 1], int.from_bytes(frame[at + 1 : at + 3], "big")
        at += 3
        values: list[bytes | None] = []
        for _ in range(count):
            value, at = _value(frame, at)
            values.append(value)
        yield kind, tuple(values)


def _value(frame: bytes, at: int) -> tuple[bytes | None, int]:
    match frame[at : at + 1]:
        case b"n":
            return None, at + 1
        case b"u":
            return UNSENT, at + 1
    end = at + 5 + int.from_bytes(frame[at + 1 : at + 5], "big")
    return b"t" + frame[at + 5 : end], end
