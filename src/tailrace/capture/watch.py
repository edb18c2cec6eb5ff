"""Watches published tables for what changes their rows and is not streamed; asks for a new base.

The last look at each table is kept beside the log, from the moment it is published on, so that what
happens while nobody captures is found as well; so is every shape in which rows come between two
looks, so that nothing happens unseen there. A base is asked for before the new look is kept:
whoever dies between the two asks twice, never not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import psycopg

from tailrace.capture.looks import keep_look, kept_shapes, last_look
from tailrace.capture.renaming import tell_names_again
from tailrace.capture.roll import Roll
from tailrace.capture.strays import came_and_went, kept_strays
from tailrace.failpoint import failpoint
from tailrace.log import Reader, layout
from tailrace.log.wanted import WantedBase, want_base
from tailrace.model import Lsn, Relation
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection
from tailrace.postgres.standing import Standing, passed_through, read_standings, unstreamed
from tailrace.postgres.trigger_traces import Traces, read_traces, were_switched
from tailrace.postgres.triggers import trigger_problems
from tailrace.storage import Store

logger = logging.getLogger(__name__)

_NEEDED: Final = "table needs a new base table=%s reason=%s"
_UNPUBLISHED: Final = "it was not published for a while"
_SWITCHED: Final = "its triggers were switched off for a while, or are others"


class Watch:
    """One leader's looks."""

    def __init__(self, store: Store, rolls: Sequence[Roll]) -> None:
        self._store = store
        self._rolls = rolls
        self._looks: dict[int, Standing] = {}

    def look(
        self,
        conn: Connection,
        oids: Sequence[int],
        *,
        by_trigger: Sequence[int] = (),
        transitioning: Sequence[int] = (),
    ) -> None:
        """Compare each of the captured tables with the last look at it; these are all of them,
        those that triggers capture, and those that are to be handed over: what is kept of these is
        read each time, since the barrier relies on it and one who led before us may have kept his
        look late.
        """
        # Before the catalog is looked at: what came later is for the next look.
        shapes, strays = kept_shapes(self._store), kept_strays(self._store)
        traces, is_whole = read_traces(conn, by_trigger), True
        tables = [
            replace(each, triggers=traces.get(each.oid)) for each in read_standings(conn, oids)
        ]
        living = frozenset[int]().union(*(table.leaf_oids for table in tables))
        gone = [stray for stray in strays.values() if stray.oid not in living]
        for now in tables:
            between = shapes.get(now.oid, {})
            is_known = self._looks.get(now.oid) == now and now.oid not in transitioning
            if is_known and not between and not gone:
                continue
            # Somebody holds or has dropped what must be looked at: there will be another turn.
            try:
                self._look_at(conn, now, list(between.values()), gone)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                is_whole = False
                continue
            self._store.delete(list(between))
        if is_whole:
            self._store.delete(list(strays))

    def _look_at(
        self,
        conn: Connection,
        now: Standing,
        between: Sequence[Relation],
        strays: Sequence[Relation],
    ) -> None:
        before = last_look(self._store, now.oid)
        reason = ""
        if before is not None:
            reason = _reason(conn, before, now, between)
            reason = reason or came_and_went(before, now, strays, between)
            now = now.after(before)
            known = self._known_triggers(before)
            if known and now.triggers and were_switched(known, now.triggers):
                if trigger_problems(conn, now.oid):
                    # Whoever puts them back asks for a base; until then they are looked at again.
                    now = replace(now, triggers=known)
                else:
                    reason = reason or _SWITCHED
            if now.is_partitioned and before.name != now.name:
                # Before the mark: a base behind it must find all later rows under the new name.
                tell_names_again(conn, self._store, self._rolls, now.oid)
        if reason:
            want_anew(conn, self._store, now.oid, now.name, reason)
        if before != now:
            failpoint("watch.before_keep")
            keep_look(self._store, now)
        self._looks[now.oid] = now

    def _known_triggers(self, before: Standing) -> Traces | None:
        """A look that was kept late may show none, as the WAL gave the table when it was taken."""
        seen = self._looks.get(before.oid)
        return seen.triggers if before.triggers is None and seen is not None else before.triggers


def keep_triggers(conn: Connection, store: Store, oid: int) -> None:
    """Inside a transaction that has switched a table's triggers on, under its lock: what they will
    look like. Whoever switches them after its commit is seen by the next look.
    """
    look = last_look(store, oid)
    if look is not None:
        keep_look(store, replace(look, triggers=read_traces(conn, [oid])[oid]))


def begin_watch(conn: Connection, store: Store, oid: int, *, by_trigger: bool = False) -> bool:
    """Keep a first look at a table that is about to be published, under its lock if it has one. If
    it was published before, what happened meanwhile was not streamed: a base as of now or later is
    asked for, and that is told. One may be under way of which nothing is to be seen yet.
    """
    is_asked_for = False
    for now in read_standings(conn, [oid]):
        if store.list(layout.table_prefix(oid)) or store.list(f"{layout.BASES}{oid}/"):
            _put_mark(store, oid, insert_position(conn), _UNPUBLISHED)
            logger.warning(_NEEDED, now.name, _UNPUBLISHED)
            is_asked_for = True
        traces = read_traces(conn, [oid])[oid] if by_trigger else None
        keep_look(store, replace(now, triggers=traces))
    return is_asked_for


def ask_after_commit(conn: Connection, store: Store, oid: int) -> None:
    """Whoever wrote a table without its lock being taken may have ended until it was published."""
    _put_mark(store, oid, insert_position(conn), _UNPUBLISHED)


def _reason(conn: Connection, before: Standing, now: Standing, between: Iterable[Relation]) -> str:
    reasons = (passed_through(before, now, shape) for shape in between)
    return unstreamed(conn, before, now) or next(filter(None, reasons), "")


def want_anew(conn: Connection, store: Store, oid: int, name: str, reason: str) -> None:
    """Ask for a base as of now or later, because changes before may be missing.

    Twice: a drain whose snapshot is older than the first position, and its message not, may have
    looked for marks just before there was one; it is before the second.
    """
    for _ in range(2):
        _put_mark(store, oid, insert_position(conn), reason)
    logger.warning(_NEEDED, name, reason)


def _put_mark(store: Store, oid: int, position: Lsn, reason: str) -> None:
    era = Reader(store).tip().source.era
    want_base(store, WantedBase(oid, Lsn.of(position, era=era), reason))
