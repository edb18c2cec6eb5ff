"""Reads what is known: from Postgres, from the log, from the streams' own records.

Nothing is asked of the processes that capture or deliver, so the answer is the same whether they
run here, elsewhere or not at all. Whoever asks again and again keeps the reader, which remembers
the part of the log that it has seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import psycopg

from tailrace.capture.footing import is_drained
from tailrace.capture.modes import HybridSettings
from tailrace.capture.origin import Attachment, require_own
from tailrace.control.captured import CapturedTable, captured_tables
from tailrace.control.health import Health, TableStat, check_health, read_stats
from tailrace.control.streams import stopped_streams
from tailrace.control.tracking import Mode
from tailrace.errors import ConfigError, LogError, SourceError
from tailrace.log import Reader, layout, read_genesis
from tailrace.log.age import oldest_commit_s
from tailrace.log.bases import newest_positions
from tailrace.log.retention import reader_positions
from tailrace.log.wanted import WantedBase, wanted_bases
from tailrace.model import Lsn
from tailrace.postgres.leading import leader_pid
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import read_server, wal_position
from tailrace.postgres.session import connect, source_error
from tailrace.postgres.slot import SlotState, read_slot
from tailrace.sinks.letters.dead_letter import DeadLetters, lanes_of
from tailrace.sinks.sink import stream_of
from tailrace.status.left_out import LeftOut, left_out
from tailrace.status.under_way import BaseUnderWay, bases_under_way
from tailrace.storage import Store
from tailrace.verify.stored import Verified, last_result

_NOTHING: Final = Selection(())
_TRANSITION_S_MAX: Final = HybridSettings().transition_s_max


class State(StrEnum):
    """How the source is doing."""

    NOT_BEGUN = "not begun"  # neither log nor slot: capture has never run
    STREAMING = "streaming"
    DRAINING = "draining"  # no slot is needed: triggers capture, and a leader fetches it
    IDLE = "idle"  # nobody captures; the server keeps its wal, or its buffers, for us
    LOST = "lost"  # the server has thrown away wal that the log does not have
    MISSING = "missing"  # the log goes on, the slot is gone
    UNKNOWN = "unknown"  # the server could not be asked


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The slot and its tables, as Postgres sees them; `error` if Postgres could not be asked, or is
    not what the log was made from.

    `safe_wal_bytes` is how much more may be written before the slot is lost; None without a limit.
    `modes` is what the control schema shows of each table; empty where there is none. `alerts` is
    what its health check finds wrong with some.
    `stale` are tables of which something was not streamed: they are whole again with a new base.
    `stopped` are streams that nobody delivers, and why.
    """

    slot: str
    state: State
    confirmed_lsn: Lsn | None = None
    wal_lsn: Lsn | None = None
    retained_wal_bytes: int | None = None
    safe_wal_bytes: int | None = None
    tables: tuple[str, ...] = ()
    by_trigger: tuple[str, ...] = ()
    modes: tuple[TableStat, ...] = ()
    alerts: tuple[Health, ...] = ()
    without_base: tuple[str, ...] = ()
    stale: tuple[LeftOut, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    bases_under_way: tuple[BaseUnderWay, ...] = ()
    stopped: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class LogReport:
    """The log; `start` is None if it has not begun. `lag_bytes` is the WAL that it does not have
    yet. `is_drained` if it goes on with what triggers have buffered, not with a slot.
    """

    url: str
    start: Lsn | None = None
    tip: Lsn | None = None
    segment_end: Lsn | None = None
    object_count: int = 0
    stored_bytes: int = 0
    lag_bytes: int | None = None
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class StreamReport:
    """How far a stream is; `position` is None if it has not begun.

    `lag_bytes` is the WAL between it and the log's end, `lag_s` the age of the oldest commit that
    it has not delivered. `waiting` are tables whose base is not complete yet: the others flow
    meanwhile. `uncaptured` are patterns that mean no captured table. `error` says why it cannot go
    on from where it is, `stopped` why nobody delivers it: it may lack tables although it is at the
    log's end. `verified` is what came of the last comparison of all its tables with the source.
    `dead_letters` is what its queue has refused and what waits behind it, in `parked_keys` rows.
    One that is not `is_configured` any more still holds back retention, until it is removed.
    """

    name: str
    position: Lsn | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    waiting: tuple[str, ...] = ()
    uncaptured: tuple[str, ...] = ()
    error: str = ""
    stopped: str = ""
    verified: Verified | None = None
    dead_letters: int = 0
    parked_keys: int = 0
    is_configured: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """Everything."""

    source: SourceReport
    log: LogReport
    streams: tuple[StreamReport, ...]

    @property
    def is_healthy(self) -> bool:
        """False if something needs a person."""
        is_captured = self.source.state in (State.NOT_BEGUN, State.STREAMING, State.DRAINING)
        is_well = (
            not (stream.error or stream.stopped)
            and (stream.verified is None or stream.verified.equal)
            for stream in self.streams
            if stream.is_configured
        )
        return is_captured and not self.source.alerts and all(is_well)


def gather(
    dsn: str | None,
    names: SourceNames,
    reader: Reader,
    streams: Mapping[str, Sequence[str]],
    *,
    now_s: float,
    selection: Selection = _NOTHING,
    transition_s_max: float = _TRANSITION_S_MAX,
) -> Report:
    """Ask Postgres and the store; `dsn` is None if the source is not running. `streams` gives the
    patterns of each stream's tables. A hand-over that takes longer than `transition_s_max` is
    stuck.

    With `selection` it is also told which of these tables are left out, and why.
    """
    log = _log(reader)
    positions = reader_positions(reader.store)
    based = newest_positions(reader.store)
    wanted = wanted_bases(reader.store, based)
    source = _source(dsn, names, selection, based, wanted, log, reader.store, transition_s_max)
    reports = tuple(
        replace(
            _with_letters(_stream(name, positions.get(name), log, reader, now_s), reader.store),
            waiting=_matching(source.without_base, tables),
            uncaptured=() if source.error else _uncaptured(source.tables, tables),
            stopped=dict(source.stopped).get(name, ""),
            verified=last_result(reader.store, name),
        )
        for name, tables in streams.items()
    )
    reports += tuple(
        replace(_stream(name, position, log, reader, now_s), is_configured=False)
        for name, position in positions.items()
        if stream_of(name) not in streams
    )
    if source.wal_lsn is not None and log.tip is not None and not log.is_drained:
        log = replace(log, lag_bytes=max(0, source.wal_lsn - log.tip.wal))
    return Report(source, log, reports)


def _source(
    dsn: str | None,
    names: SourceNames,
    selection: Selection,
    based: Collection[int],
    wanted: Mapping[int, WantedBase],
    log: LogReport,
    store: Store,
    transition_s_max: float,
) -> SourceReport:
    if dsn is None:
        return SourceReport(names.slot, State.UNKNOWN, error="the embedded postgres is not running")
    try:
        with connect(dsn) as conn:
            # What is said of slot and log below would be of two sources.
            own = Attachment(conn, store, names, writer_id="", go_on=lambda: None)
            require_own(own, read_server(conn, slot=names.slot))
            slot = read_slot(conn, names.slot)
            captured = captured_tables(conn, names)
            excluded = left_out(conn, selection, {each.oid for each in captured})
            under_way = bases_under_way(conn)
            position = wal_position(conn)
            is_led = leader_pid(conn, names.slot) is not None
            modes = tuple(read_stats(conn, names.slot))
            health = check_health(
                conn, names.slot, transition_s_max=transition_s_max, is_told=False
            )
            stopped = stopped_streams(conn, names.slot)
    except psycopg.Error as error:
        return SourceReport(names.slot, State.UNKNOWN, error=str(source_error(error)))
    except (ConfigError, SourceError) as error:
        return SourceReport(names.slot, State.UNKNOWN, error=str(error))
    return SourceReport(
        slot=names.slot,
        state=_state(slot, log, is_led=is_led),
        confirmed_lsn=slot.confirmed_flush_lsn if slot else None,
        wal_lsn=position,
        retained_wal_bytes=position - slot.restart_lsn if slot and slot.restart_lsn else None,
        safe_wal_bytes=slot.safe_wal_bytes if slot else None,
        tables=_tables(captured),
        by_trigger=tuple(each.name for each in captured if each.mode is not Mode.WAL),
        modes=modes,
        alerts=tuple(each for each in health if each.reason),
        without_base=_tables(captured, without=based),
        bases_under_way=under_way,
        stopped=tuple(stopped.items()),
        stale=tuple(
            LeftOut(each.name, wanted[each.oid].reason) for each in captured if each.oid in wanted
        ),
        left_out=excluded,
    )


def _state(slot: SlotState | None, log: LogReport, *, is_led: bool) -> State:
    if log.is_drained:
        return State.DRAINING if is_led else State.IDLE
    if slot is None:
        return State.MISSING if log.start is not None else State.NOT_BEGUN
    if slot.is_lost:
        return State.LOST
    return State.STREAMING if slot.is_active else State.IDLE


def _tables(captured: Sequence[CapturedTable], *, without: Collection[int] = ()) -> tuple[str, ...]:
    return tuple(each.name for each in captured if each.oid not in without)


def _matching(tables: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    parsed = [TablePattern.parse(text) for text in patterns]
    names = [(table, table.split(".", 1)) for table in tables]
    return tuple(
        table for table, name in names if any(one.matches(name[0], name[1]) for one in parsed)
    )


def _uncaptured(tables: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(pattern for pattern in patterns if not _matching(tables, [pattern]))


def _log(reader: Reader) -> LogReport:
    store, genesis = reader.store, read_genesis(reader.store)
    if genesis is None:
        return LogReport(store.url)
    tip = reader.tip()
    count, size = _stored(store)
    return LogReport(
        url=store.url,
        start=reader.begin(),
        tip=tip.position,
        segment_end=tip.segment_end,
        object_count=count,
        stored_bytes=size,
        is_drained=is_drained(tip, genesis),
    )


def _stored(store: Store) -> tuple[int, int]:
    levels = (layout.SEGMENTS, layout.MERGED, layout.PARTS)
    sizes = [entry.size for level in levels for entry in store.list(level)]
    return len(sizes), sum(sizes)


def _stream(
    name: str, position: Lsn | None, log: LogReport, reader: Reader, now_s: float
) -> StreamReport:
    if position is None or log.segment_end is None:
        return StreamReport(name, position)
    lag_bytes = max(0, log.segment_end - position)
    try:
        oldest_s = oldest_commit_s(reader, position)
    except LogError as error:
        return StreamReport(name, position, lag_bytes, error=str(error))
    lag_s = 0.0 if oldest_s is None else max(0.0, now_s - oldest_s)
    return StreamReport(name, position, lag_bytes, lag_s)


def _with_letters(stream: StreamReport, store: Store) -> StreamReport:
    names = DeadLetters(store, stream.name).names()
    parked = lanes_of(name for name in names if not name.is_outdone)
    return replace(stream, dead_letters=len(names), parked_keys=len(parked))
