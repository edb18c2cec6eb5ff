"""Streams as the control schema has them: the rows of `tailrace.streams`.

A row is a wish and a state. People write the wish, by SQL or through the configuration file; only
the pipeline that delivers the stream writes the state, within `reporting`, and it never waits for
anybody's lock to do so. A stream is never held up by this table: what is not known is left as it
was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import Jsonb, JsonbLoader

from tailrace.postgres.session import Connection

STREAMS_CHANNEL: Final = "tailrace_streams"

Moment = datetime | str
"""A time; in the words of Postgres if Python's calendar does not have it, as infinity."""


class Origin(StrEnum):
    """Who declares a stream."""

    FILE = "file"
    SQL = "sql"


class Status(StrEnum):
    """`tailrace.streams.status`."""

    HEALTHY = "healthy"
    FAILOVER = "failover"
    REPLAY = "replay"
    SLOT_RECOVERY = "slot_recovery"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Definition:
    """What a stream delivers, in the words of the configuration; secrets are references."""

    tables: tuple[str, ...]
    sink: Mapping[str, object]
    where: str | None = None
    columns: tuple[str, ...] | None = None
    key: tuple[str, ...] | None = None
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream: what is wished, and how it was doing when that was last reported."""

    name: str
    origin: Origin
    definition: Definition
    paused: bool
    revision: int
    status: Status
    reason: str | None
    replay_from_ts: Moment | None
    replay_to_ts: Moment | None
    state: Mapping[str, object]
    """The columns that only people read: position, lag, counters, times."""

    @classmethod
    def new(
        cls, name: str, origin: Origin, definition: Definition, status: Status, reason: str
    ) -> StreamRow:
        """One that the table does not have yet."""
        return cls(name, origin, definition, False, 0, status, reason, None, None, {})


_SHOWN: Final = (
    *("node", "epoch", "position", "lag_bytes", "lag_seconds", "batch_count", "change_count"),
    *("replayed_count", "failure_count", "dead_letter_count", "replay_progress", "replay_note"),
    *("available_from_ts", "available_to_ts", "created_at", "updated_at", "status_since"),
    "reported_at",
)
_ROWS: Final = """
SELECT s.*, s."position"::text AS "position"
  FROM tailrace.streams AS s WHERE s.source = %s ORDER BY s.name
"""


def has_streams(conn: Connection) -> bool:
    """Whether the control schema knows streams."""
    query = "SELECT to_regclass('tailrace.streams') IS NOT NULL"
    return conn.execute(query).fetchone() == (True,)


def read_streams(conn: Connection, source: str) -> list[StreamRow]:
    """The streams of a source, by name; none if the control schema does not know any. No row keeps
    the others from being read.
    """
    if not has_streams(conn):
        return []
    with conn.cursor(row_factory=dict_row) as cursor:
        cursor.adapters.register_loader("timestamptz", _MomentLoader)
        cursor.adapters.register_loader("jsonb", _JsonLoader)
        return [_row(row) for row in cursor.execute(_ROWS, (source,))]


def patterns_of_streams(conn: Connection, source: str) -> dict[str, tuple[str, ...]]:
    """By name, which tables each stream asks for: as written, whether that can be read or not."""
    if not has_streams(conn):
        return {}
    query = "SELECT name, tables FROM tailrace.streams WHERE source = %s"
    return {name: tuple(tables) for name, tables in conn.execute(query, (source,))}


def stopped_streams(conn: Connection, source: str) -> dict[str, str]:
    """By name, why each stream is not delivered that nobody has paused."""
    if not has_streams(conn):
        return {}
    query = (
        "SELECT name, coalesce(reason, '') FROM tailrace.streams"
        " WHERE source = %s AND status = %s AND NOT paused"
    )
    return dict(conn.execute(query, (source, Status.STOPPED.value)).fetchall())


@contextmanager
def reporting(conn: Connection) -> Iterator[None]:
    """A transaction in which the pipeline writes what only it may write."""
    with conn.transaction():
        conn.execute("SELECT set_config('tailrace.reporting', 'on', true)")
        yield


_DECLARE: Final = """
INSERT INTO tailrace.streams AS s
       (source, name, origin, tables, "where", columns, key, sink, options)
VALUES (%(source)s, %(name)s, 'file', %(tables)s, %(where)s, %(columns)s, %(key)s, %(sink)s,
        %(options)s)
    ON CONFLICT (source, name) DO UPDATE
   SET tables = excluded.tables, "where" = excluded."where", columns = excluded.columns,
       key = excluded.key, sink = excluded.sink, options = excluded.options
 WHERE s.origin = 'file'
"""


def declare(conn: Connection, source: str, name: str, definition: Definition) -> None:
    """Make or change a stream as the configuration file has it; one of SQL's is left alone."""
    values = {
        "source": source,
        "name": name,
        "tables": list(definition.tables),
        "where": definition.where,
        "columns": _list(definition.columns),
        "key": _list(definition.key),
        "sink": Jsonb(dict(definition.sink)),
        "options": Jsonb(dict(definition.options)),
    }
    conn.execute(_DECLARE, values)


def withdraw(conn: Connection, source: str, names: Sequence[str]) -> None:
    """Delete rows of streams that the configuration file has declared, and does no more."""
    query = """DELETE FROM tailrace.streams
                WHERE source = %s AND name = ANY (%s) AND origin = 'file'"""
    conn.execute(query, (source, list(names)))


def delete_all(conn: Connection, source: str) -> None:
    """Delete every stream of a source that is taken down."""
    with reporting(conn):
        conn.execute("DELETE FROM tailrace.streams WHERE source = %s", (source,))


def delete(conn: Connection, source: str, name: str) -> bool:
    """Delete a stream that SQL has made; whether there was one."""
    query = "DELETE FROM tailrace.streams WHERE source = %s AND name = %s RETURNING true"
    return conn.execute(query, (source, name)).fetchone() is not None


def set_paused(conn: Connection, source: str, name: str, *, paused: bool) -> bool:
    """Pause or resume a stream; whether there is one. One that has stopped is tried again."""
    query = """UPDATE tailrace.streams SET paused = %s
                WHERE source = %s AND name = %s RETURNING true"""
    return conn.execute(query, (paused, source, name)).fetchone() is not None


def sayable(text: str) -> str:
    """As far as Postgres can hold it: what a sink answers may be anything."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


class _MomentLoader(Loader):
    """Where psycopg would raise, and with it every other row would be lost, gives the text."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._known = TimestamptzLoader(oid, context)

    def load(self, data: Buffer) -> Moment:
        """Read what Postgres has sent."""
        try:
            return self._known.load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class _JsonLoader(JsonbLoader):
    """Likewise, gives an option that no stream has: numbers may have more digits, and lists be
    deeper, than Python reads.
    """

    def load(self, data: Buffer) -> object:
        """Read what Postgres has sent."""
        try:
            return super().load(data)
        except (ValueError, RecursionError):
            return {"unreadable": True}


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _row(row: dict[str, Any]) -> StreamRow:
    definition = Definition(
        tables=tuple(row["tables"]),
        sink=row["sink"],
        where=row["where"],
        columns=_tuple(row["columns"]),
        key=_tuple(row["key"]),
        options=row["options"],
    )
    return StreamRow(
        name=row["name"],
        origin=Origin(row["origin"]),
        definition=definition,
        paused=row["paused"],
        revision=row["revision"],
        status=Status(row["status"]),
        reason=row["reason"],
        replay_from_ts=row["replay_from_ts"],
        replay_to_ts=row["replay_to_ts"],
        state={name: row[name] for name in _SHOWN},
    )
