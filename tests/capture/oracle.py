"""The verdict: the log, folded, is the source; and every change stands in it once, in order.

The frames are read here by plain code of its own, a value at a time, as Postgres' text: nothing
that delivers changes has a part in judging them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
from psycopg import sql

from tailrace.log import Link, Reader, segment
from tailrace.log.verify import verify
from tailrace.model import Offset, Relation
from tailrace.postgres.pgoutput import parse_commit, parse_relation, parse_truncate
from tailrace.storage import Store

Values: TypeAlias = dict[str, str | None]
State: TypeAlias = dict[str, dict[tuple[str | None, ...], Values]]


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """One change of the log; `new` lacks what Postgres did not send."""

    end_lsn: int
    ordinal: int
    op: str
    relation: Relation
    old: Values | None
    new: Values | None


def read_changes(store: Store) -> Iterator[LoggedChange]:
    """Every change of the log, in its order."""
    for link in Reader(store).walk(Offset.whole(0)):
        pending: list[LoggedChange] = []
        relations = dict(link.header.initial)
        for frame in _frames(store, link):
            match frame[:1]:
                case b"R":
                    relation = parse_relation(frame)
                    relations[relation.oid] = link.header.versions.get(frame, relation)
                case b"C":
                    end = parse_commit(frame).end_lsn
                    if end > link.start:
                        for number, change in enumerate(pending):
                            yield LoggedChange(
                                end, number, change.op, change.relation, change.old, change.new
                            )
                    pending = []
                case b"T":
                    for oid in parse_truncate(frame):
                        pending.append(LoggedChange(0, 0, "T", relations[oid], None, None))
                case b"I" | b"U" | b"D":
                    pending.append(_row(frame, relations))


def _frames(store: Store, link: Link) -> Iterator[bytes]:
    for key in (*(part.key for part in link.header.parts), link.key):
        run = segment.read(store, key).frames
        for number in range(len(run)):
            yield run.frame(number)


def _row(frame: bytes, relations: dict[int, Relation]) -> LoggedChange:
    relation = relations[int.from_bytes(frame[1:5], "big")]
    names = [column.name for column in relation.columns]
    old = new = None
    at = 5
    while at < len(frame):
        kind, (values, at) = frame[at : at + 1], _tuple(frame, at + 1, names)
        if kind == b"N":
            new = values
        else:
            old = values
    return LoggedChange(0, 0, frame[:1].decode(), relation, old, new)


def _tuple(frame: bytes, at: int, names: list[str]) -> tuple[Values, int]:
    count = int.from_bytes(frame[at : at + 2], "big")
    assert count == len(names)
    at += 2
    values: Values = {}
    for name in names:
        kind = frame[at : at + 1]
        at += 1
        if kind == b"n":
            values[name] = None
        elif kind == b"t":
            size = int.from_bytes(frame[at : at + 4], "big")
            values[name] = frame[at + 4 : at + 4 + size].decode()
            at += 4 + size
    return values, at


def fold(store: Store) -> State:
    """The tables as the log leaves them; fails on a change that does not fit the one before it."""
    state: State = {}
    last = (0, -1)
    for change in read_changes(store):
        assert (change.end_lsn, change.ordinal) > last, "a change stands twice, or out of order"
        last = (change.end_lsn, change.ordinal)
        apply(state.setdefault(change.relation.qualified, {}), change)
    return state


def apply(table: dict[tuple[str | None, ...], Values], change: LoggedChange) -> None:
    """One change of a table; fails if it does not fit what is there."""
    key_names = change.relation.key
    if change.op == "T":
        table.clear()
        return
    old, new = change.old, change.new
    if change.op != "I":
        found = old or new
        assert found is not None
        before = table.pop(tuple(found[name] for name in key_names))
    if new is not None:
        key = tuple(new[name] for name in key_names)
        assert key not in table, f"{change.relation.qualified} {key} came twice"
        table[key] = new if change.op == "I" else {**before, **new}


def source_state(connection: psycopg.Connection, tables: list[str]) -> State:
    """The tables as they are, as text."""
    state: State = {}
    for table in tables:
        name = sql.SQL(".").join(map(sql.Identifier, table.split(".")))
        columns = [
            column.name
            for column in connection.execute(
                sql.SQL("SELECT * FROM {} LIMIT 0").format(name)
            ).description
            or ()
        ]
        texts = sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(column)) for column in columns
        )
        rows = connection.execute(sql.SQL("SELECT {} FROM {}").format(texts, name)).fetchall()
        state[table] = {(row[0],): dict(zip(columns, row, strict=True)) for row in rows}
    return state


def assert_equal(store: Store, connection: psycopg.Connection, *tables: str) -> None:
    """The log is sound, and holds what the source holds; the first column is the key."""
    *_, verification = verify(store)
    assert verification.problems == []
    logged = fold(store)
    wanted = source_state(connection, list(tables))
    for table in tables:
        assert logged.get(table, {}) == wanted[table]
