"""What captures which table, put on record where modes are shown.

How far the log is only while a slot is streamed: what its confirmed position has passed is in the
log. A slot that is just being made has a position too, but nothing of it is in the log yet.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import psycopg

from tailrace.capture.modes import HybridSettings
from tailrace.capture.news import News
from tailrace.capture.roll import Roll, is_published
from tailrace.control.schema import installed_version
from tailrace.control.streams import patterns_of_streams
from tailrace.control.tracking import (
    Mode,
    Tracked,
    describe,
    set_confirmed,
    set_mode,
    track,
    tracked_elsewhere,
)
from tailrace.errors import ConfigError
from tailrace.model import Lsn
from tailrace.postgres.catalog import TableInfo, read_tables
from tailrace.postgres.leading import as_leader
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import read_slot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What there is to look after: whose tables, how, and who leads. `has_slot` if the WAL can be
    had, because a slot of ours is being streamed.
    """

    dsn: str = field(repr=False)
    names: SourceNames
    selection: Selection
    hybrid: HybridSettings
    leader_pid: int
    has_slot: bool


@dataclass(frozen=True, slots=True)
class Captured:
    """What captures which table, as the catalog has it: those that are published, and by which
    publication; those that are on record.
    """

    members: dict[int, Roll] = field(default_factory=dict)
    tracked: dict[int, Tracked] = field(default_factory=dict)

    @property
    def by_trigger(self) -> list[int]:
        """The tables that triggers capture."""
        return [
            oid
            for oid, each in self.tracked.items()
            if each.mode is not Mode.WAL and oid not in self.members
        ]

    @property
    def transitioning(self) -> list[int]:
        """The tables that are to be handed over."""
        return [oid for oid, each in self.tracked.items() if each.mode is Mode.TRANSITIONING]

    @property
    def oids(self) -> list[int]:
        """All that are captured."""
        return [*self.members, *self.by_trigger]


class OnRecord:
    """One leader's records. `is_done` once the slot is of no use to any table any more."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._news = News()
        self._emptied_at: Lsn | None = None
        self.is_done = False

    def put(self, conn: Connection, captured: Captured) -> Lsn | None:
        """Where the control schema is, show tables as they are called and who reads them, those
        that never had a trigger too, and how far the log is; the last is given back if it is known.
        Raises NotLeading.
        """
        self._describe(conn, captured.tracked)
        if not self._task.has_slot or not installed_version(conn):
            return None
        self._show_members(conn, captured)
        source = self._task.names.slot
        slot = read_slot(conn, source)
        if slot is None or slot.confirmed_flush_lsn is None:
            return None
        with self._leading(conn):
            set_confirmed(conn, slot.confirmed_flush_lsn, source=source)
        self._see_if_done(conn, captured, slot.confirmed_flush_lsn)
        return slot.confirmed_flush_lsn

    def _leading(self, conn: Connection) -> AbstractContextManager[None]:
        return as_leader(conn, self._task.names.slot, self._task.leader_pid)

    def _show_members(self, conn: Connection, captured: Captured) -> None:
        """That the WAL gives them, and by which publication. Another source may have them too: what
        is on record of that one stays.
        """
        elsewhere = tracked_elsewhere(conn, self._task.names.slot)
        shown = {oid for oid, each in captured.tracked.items() if _is_shown(each, captured.members)}
        for table in read_tables(conn, [*captured.members.keys() - shown]):
            if table.oid not in elsewhere:
                self._show(conn, table, captured.members[table.oid].publication)
            elif self._news.is_new(str(table.oid), "shared"):
                logger.info("table is on record of another source table=%s", table.qualified)

    def _show(self, conn: Connection, table: TableInfo, publication: str) -> None:
        source = self._task.names.slot
        with self._leading(conn):
            track(conn, table, source=source, mode=Mode.WAL)
            set_mode(conn, table.oid, Mode.WAL, source=source, slot=source, publication=publication)
            # Who led before may have brought it back, and the row has been waited for.
            if not is_published(conn, self._task.names, table.oid):
                raise psycopg.Rollback

    def _describe(self, conn: Connection, tracked: dict[int, Tracked]) -> None:
        """Streams come and go; what they read is captured for as long as it is meant to be."""
        selection = self._streams(conn) if tracked else self._task.selection
        for table in read_tables(conn, tracked):
            readers, known = selection.readers(table), tracked[table.oid]
            if (known.qualified, known.tracked_by) != (table.qualified, readers):
                with self._leading(conn):
                    describe(conn, table, readers, source=self._task.names.slot)

    def _streams(self, conn: Connection) -> Selection:
        """With the streams of the file those that were made in SQL."""
        selection, source = self._task.selection, self._task.names.slot
        made = patterns_of_streams(conn, source)
        readable = {name: own for name, own in made.items() if all(map(_can_be_read, own))}
        return replace(selection, streams={**selection.streams, **readable})

    def _see_if_done(self, conn: Connection, captured: Captured, confirmed: Lsn) -> None:
        """If no table is ever to come from the WAL, the slot is needed only until all that tables
        have sent through it is in the log.
        """
        if self._task.hybrid.may_use_wal or captured.members:
            self._emptied_at = None
        elif self._emptied_at is None:
            self._emptied_at = insert_position(conn)
        else:
            self.is_done = confirmed >= self._emptied_at


def _is_shown(tracked: Tracked, members: dict[int, Roll]) -> bool:
    """Whether a row tells by which publication its table comes."""
    roll = members.get(tracked.oid)
    return roll is not None and (tracked.mode, tracked.publication) == (Mode.WAL, roll.publication)


def _can_be_read(pattern: str) -> bool:
    """Whoever makes a stream is told of a pattern that cannot; capture goes on."""
    try:
        TablePattern.parse(pattern)
    except ConfigError:
        return False
    return True
