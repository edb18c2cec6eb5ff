"""What the target database keeps about its targets, in the schema `tailrace_sink`.

`targets` has the tables that are ours, by their oid: one that was dropped and made again is another
table, and what was recorded for the old one does not count for it. `watermarks` has, for each
stream, the sequence that was applied last.

Invariant: a watermark moves in the transaction that changes the rows, and whoever moves it holds
the lock on its row from before it looked at it. So a batch that comes again, and a writer that
comes late, find the sequence recorded and change nothing; of two at once the second one waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.postgres.session import Connection

SCHEMA: Final = "tailrace_sink"

_IS_THERE: Final = "SELECT to_regclass('tailrace_sink.watermarks') IS NOT NULL"
_LOCK: Final = 7_214_655_330_117
_MAKE: Final = """
CREATE SCHEMA IF NOT EXISTS tailrace_sink;
CREATE TABLE IF NOT EXISTS tailrace_sink.targets (
    target oid PRIMARY KEY,
    source text NOT NULL
);
CREATE TABLE IF NOT EXISTS tailrace_sink.watermarks (
    target oid REFERENCES tailrace_sink.targets ON DELETE CASCADE,
    stream text,
    sequence bigint,
    upto text,
    written_at timestamptz,
    PRIMARY KEY (target, stream)
);
"""
_FORGET_DROPPED: Final = """
DELETE FROM tailrace_sink.targets t WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.target)
"""
_BEGIN: Final = """
INSERT INTO tailrace_sink.watermarks (target, stream) VALUES (%s, %s) ON CONFLICT DO NOTHING
"""
_HOLD: Final = """
SELECT sequence FROM tailrace_sink.watermarks WHERE target = %s AND stream = %s FOR UPDATE
"""
_MOVE: Final = """
UPDATE tailrace_sink.watermarks SET sequence = %s, upto = %s, written_at = now()
WHERE target = %s AND stream = %s
"""
_COMMITTED: Final = """
SELECT n.nspname, c.relname, w.sequence
FROM tailrace_sink.watermarks w
JOIN pg_class c ON c.oid = w.target
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE w.stream = %s AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))
"""
_OCCUPIED: Final = """
SELECT DISTINCT n.nspname, c.relname
FROM tailrace_sink.watermarks w
JOIN pg_class c ON c.oid = w.target
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))
"""


@dataclass(frozen=True, slots=True)
class Watermark:
    """One stream's row for one target, locked until the transaction ends; `recorded` is None if
    the stream has written nothing to it.
    """

    target: int
    stream: str
    recorded: int | None

    @classmethod
    def hold(cls, conn: Connection, target: int, stream: str) -> Watermark:
        """Lock the row; one that is not there is made, and is gone again unless it is moved."""
        conn.execute(_BEGIN, (target, stream))
        row = conn.execute(_HOLD, (target, stream)).fetchone()
        assert row is not None, "the row was made"
        return cls(target, stream, row[0])

    def covers(self, sequence: int) -> bool:
        """Whether this sequence, or a later one, is recorded."""
        return self.recorded is not None and self.recorded >= sequence

    def move(self, conn: Connection, sequence: int, upto: object) -> None:
        """Record that the sequence is applied; `upto` is for people."""
        conn.execute(_MOVE, (sequence, str(upto), self.target, self.stream))


def is_set_up(conn: Connection) -> bool:
    """Whether the schema is there."""
    row = conn.execute(_IS_THERE).fetchone()
    return row is not None and bool(row[0])


def set_up(conn: Connection) -> None:
    """Make the schema if there is none; one maker at a time."""
    if not is_set_up(conn):
        conn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        conn.execute(_MAKE)


def note_target(conn: Connection, target: int, source: str) -> None:
    """Record that this table is ours, and forget those that were dropped."""
    conn.execute(_FORGET_DROPPED)
    conn.execute("INSERT INTO tailrace_sink.targets VALUES (%s, %s)", (target, source))


def committed(
    conn: Connection, stream: str, places: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """By the target's schema and name, the sequence that the stream has recorded there."""
    if not is_set_up(conn):
        return {}
    found = conn.execute(_COMMITTED, (stream, *_split(places))).fetchall()
    return {(schema, name): sequence for schema, name, sequence in found}


def occupied(conn: Connection, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those of these schemas and names where any stream has recorded something."""
    if not is_set_up(conn):
        return set()
    return {(schema, name) for schema, name in conn.execute(_OCCUPIED, _split(places)).fetchall()}


def _split(places: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Schemas and names, for `unnest`."""
    places = list(places)
    return [schema for schema, _ in places], [name for _, name in places]
