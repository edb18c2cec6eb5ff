"""Reads what is known: from Postgres, from the log, from the streams' own records.

Nothing is asked of the processes that capture or deliver, so the answer is the same whether they
run here, elsewhere or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tailrace.errors import SourceError
from tailrace.log import Reader, layout, read_genesis
from tailrace.log.retention import reader_positions
from tailrace.model import Lsn
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import connect, source_error
from tailrace.postgres.slot import read_slot
from tailrace.storage import Store


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The slot, as Postgres sees it; `error` if Postgres could not be asked."""

    slot: str
    state: str
    confirmed_lsn: Lsn | None = None
    wal_lsn: Lsn | None = None
    retained_wal_bytes: int | None = None
    tables: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class LogReport:
    """The log; `start` is None if it has not begun."""

    url: str
    start: Lsn | None = None
    tip: Lsn | None = None
    segment_end: Lsn | None = None
    object_count: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StreamReport:
    """How far a stream is, and how much WAL lies between it and the log's end."""

    name: str
    position: Lsn | None
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything."""

    source: SourceReport
    log: LogReport
    streams: tuple[StreamReport, ...]

    @property
    def is_healthy(self) -> bool:
        """False if something needs a person."""
        return not self.source.error and self.source.state not in ("missing", "lost")


def gather(dsn: str | None, names: SourceNames, store: Store, streams: Sequence[str]) -> Report:
    """Ask Postgres and the store; `dsn` is None if the source is not running."""
    log = _log(store)
    positions = reader_positions(store)
    reports = tuple(_stream(name, positions.get(name), log) for name in streams)
    return Report(_source(dsn, names, has_log=log.start is not None), log, reports)


def _source(dsn: str | None, names: SourceNames, *, has_log: bool) -> SourceReport:
    if dsn is None:
        return SourceReport(names.slot, "stopped", error="the embedded postgres is not running")
    try:
        with connect(dsn) as conn:
            slot = read_slot(conn, names.slot)
            if slot is None:
                return SourceReport(names.slot, "missing" if has_log else "not made yet")
            published = fingerprint(conn, names.publication)
            position = wal_position(conn)
    except psycopg.Error as error:
        return SourceReport(names.slot, "unknown", error=str(source_error(error)))
    except SourceError as error:
        return SourceReport(names.slot, "unknown", error=str(error))
    restart = slot.restart_lsn
    return SourceReport(
        slot=names.slot,
        state="lost" if slot.is_lost else "streaming" if slot.is_active else "idle",
        confirmed_lsn=slot.confirmed_flush_lsn,
        wal_lsn=position,
        retained_wal_bytes=None if restart is None else position - restart,
        tables=tuple(sorted(m.table for m in published.members)) if published else (),
    )


def _log(store: Store) -> LogReport:
    if read_genesis(store) is None:
        return LogReport(store.url)
    reader = Reader(store)
    tip = reader.tip()
    levels = (layout.SEGMENTS, layout.MERGED, layout.PARTS)
    entries = [entry for level in levels for entry in store.list(level)]
    return LogReport(
        url=store.url,
        start=reader.begin(),
        tip=tip.position,
        segment_end=tip.segment_end,
        object_count=len(entries),
        stored_bytes=sum(entry.size for entry in entries),
    )


def _stream(name: str, position: Lsn | None, log: LogReport) -> StreamReport:
    if position is None or log.segment_end is None:
        return StreamReport(name, position, None)
    return StreamReport(name, position, max(0, log.segment_end - position))
