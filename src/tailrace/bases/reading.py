"""Reads stretches of tables under a snapshot and puts them into the log: what a task does.

A task has one session, in one transaction that has imported the snapshot. Blocks of rows are put
while the next one is read, even if that is of the next stretch, and one at a time, so memory is
bounded. What goes wrong is returned, not raised: one table that cannot be read must not end the
others, and a stretch that failed is read again, under the same snapshot, with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import psycopg

from tailrace.bases.putting import Putter
from tailrace.bases.stretch import Stretch, copy_query
from tailrace.errors import SourceError, TailraceError
from tailrace.log import BasePart, SourceIdentity
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import BaseTaken
from tailrace.model import Lsn
from tailrace.postgres.copy_out import copy_out
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.snapshot import import_snapshot
from tailrace.storage import Store

PART_BYTES: Final = 8 << 20
APPLICATION_NAME: Final = "tailrace base reader"

_SETTINGS: Final = {
    "statement_timeout": "0",
    # The rows of a stretch come in one order only, so that a part can be made again.
    "enable_seqscan": "off",
    "synchronize_seqscans": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}

# The table, a column or a type is not there any more, or not what it was; or the position is taken.
_CHANGED: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.WrongObjectType,
    BaseTaken,
)


class Failure(StrEnum):
    """Why a stretch was not read."""

    CHANGED = "changed"  # the table is another one than the snapshot's: it must start again
    PASSING = "passing"  # reading the stretch again may help
    LASTING = "lasting"


@dataclass(frozen=True, slots=True)
class Reading:
    """What every task is told. Holds the DSN: never shown."""

    dsn: str = field(repr=False)
    snapshot: str
    source: SourceIdentity
    position: Lsn
    writer: str
    columns: Mapping[int, tuple[str, ...]]
    bytes_per_s: float | None = None

    def identity(self, oid: int) -> BaseIdentity:
        """Of the base of one table."""
        return BaseIdentity(self.source, oid, self.position, self.writer)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stretch: its parts, or a failure and its words."""

    oid: int
    number: int
    parts: tuple[BasePart, ...] = ()
    failure: Failure | None = None
    message: str = ""
    hint: str = ""


def read_stretches(
    reading: Reading, store: Store, stretches: Iterable[Stretch]
) -> Iterator[Outcome]:
    """Read them one after the other, on one session."""
    conn: Connection | None = None
    received: _Received | None = None
    with ThreadPoolExecutor(1, "tailrace-put") as pool:
        putter = Putter(pool, store)
        try:
            for stretch in stretches:
                try:
                    if conn is None or conn.closed:
                        conn = _open(reading)
                    before, received = received, _receive(conn, putter, reading, stretch)
                except (psycopg.Error, TailraceError) as error:
                    # A copy may be under way in this session.
                    if conn is not None:
                        conn.close()
                    yield _failed(stretch, error)
                else:
                    if before is not None:
                        yield before.outcome()
            if received is not None:
                yield received.outcome()
        finally:
            if conn is not None:
                conn.close()


def _open(reading: Reading) -> Connection:
    conn = connect(reading.dsn, application_name=APPLICATION_NAME, settings=_SETTINGS)
    try:
        import_snapshot(conn, reading.snapshot)
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject) as error:
        conn.close()
        raise SourceError("the snapshot is not held any more", retry=True) from error
    return conn


@dataclass(frozen=True, slots=True)
class _Received:
    """A stretch whose rows have all come, but are maybe not all put."""

    stretch: Stretch
    parts: list[Future[BasePart]]
    is_unmoved: bool

    def outcome(self) -> Outcome:
        """When the last part is put, or could not be."""
        stretch, leaf = self.stretch, self.stretch.leaf
        try:
            parts = tuple(part.result() for part in self.parts)
        except TailraceError as error:
            return _failed(stretch, error)
        if not self.is_unmoved:
            return _changed(stretch, f"{leaf.schema}.{leaf.name} was rewritten or renamed")
        return Outcome(stretch.oid, stretch.number, parts)


def _receive(conn: Connection, putter: Putter, reading: Reading, stretch: Stretch) -> _Received:
    query = copy_query(stretch, reading.columns[stretch.oid])
    identity = reading.identity(stretch.oid)
    parts: list[Future[BasePart]] = []
    pace = Pace(reading.bytes_per_s)
    for number, rows in enumerate(copy_out(conn, query, block_bytes=PART_BYTES)):
        if parts:
            parts[-1].result()
        parts.append(putter.put(identity, rows, stretch=stretch.number, number=number))
        pace.wait(rows.nbytes)
    return _Received(stretch, parts, _is_unmoved(conn, stretch))


# The left sides are as of the snapshot, the right sides as of now; all under the lock that the COPY
# has taken, which no rewrite can pass, nor a change of the name by which the table was found.
_UNMOVED: Final = """
SELECT relfilenode = pg_relation_filenode(oid)
       AND oid = to_regclass(format('%%I.%%I', %s::text, %s::text))
  FROM pg_class WHERE oid = %s
"""


def _is_unmoved(conn: Connection, stretch: Stretch) -> bool:
    leaf = stretch.leaf
    return conn.execute(_UNMOVED, (leaf.schema, leaf.name, leaf.oid)).fetchone() == (True,)


def _failed(stretch: Stretch, error: psycopg.Error | TailraceError) -> Outcome:
    known = source_error(error) if isinstance(error, psycopg.Error) else error
    if isinstance(error, _CHANGED):
        return _changed(stretch, str(known))
    failure = Failure.PASSING if known.retry else Failure.LASTING
    return Outcome(
        stretch.oid, stretch.number, failure=failure, message=str(known), hint=known.hint
    )


def _changed(stretch: Stretch, message: str) -> Outcome:
    return Outcome(stretch.oid, stretch.number, failure=Failure.CHANGED, message=message)


class Pace:
    """Holds back a task that reads faster than it may."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._started = time.monotonic()
        self._size = 0

    def wait(self, size: int) -> None:
        """Until so many more bytes are due."""
        if self._bytes_per_s is None:
            return
        self._size += size
        ahead_s = self._size / self._bytes_per_s - (time.monotonic() - self._started)
        if ahead_s > 0:
            time.sleep(ahead_s)
