"""Watches published tables for what changes their rows and is not streamed; asks for a new base.

The last look at each table is kept beside the log, from the moment it is published on, so that what
happens while nobody captures is found as well. A base is asked for before the new look is kept:
whoever dies between the two asks twice, never not at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import psycopg

from tailrace.errors import SegmentCorrupt
from tailrace.failpoint import failpoint
from tailrace.log import Reader, layout
from tailrace.log.marks import raise_mark
from tailrace.log.wanted import WantedBase, want_base
from tailrace.model import Lsn
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection
from tailrace.postgres.standing import Standing, read_standings, unstreamed
from tailrace.storage import Store

logger = logging.getLogger(__name__)


class Watch:
    """One leader's looks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looks: dict[int, Standing] = {}

    def look(self, conn: Connection, oids: Sequence[int]) -> None:
        """Compare each of the published tables with the last look at it."""
        for now in read_standings(conn, oids):
            if self._looks.get(now.oid) == now:
                continue
            before = _last_look(self._store, now.oid)
            # Somebody holds or has dropped what must be looked at: there will be another turn.
            try:
                reason = unstreamed(conn, before, now) if before else ""
            except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                continue
            if reason:
                _want(self._store, now, insert_position(conn), reason)
            if before != now:
                failpoint("watch.before_keep")
                _keep(self._store, now)
            self._looks[now.oid] = now


def begin_watch(conn: Connection, store: Store, oid: int, since: Lsn) -> None:
    """Keep a first look at a table that is about to be published. If it was published before, what
    happened meanwhile was not streamed: a base after `since` is asked for.
    """
    for now in read_standings(conn, [oid]):
        if store.list(f"{layout.BASES}{oid}/"):
            _want(store, now, since, "it was not published for a while")
        _keep(store, now)


def _want(store: Store, table: Standing, position: Lsn, reason: str) -> None:
    era = Reader(store).tip().source.era
    want_base(store, WantedBase(table.oid, Lsn.of(position, era=era), reason))
    logger.warning("table needs a new base table=%s reason=%s", table.name, reason)


def _last_look(store: Store, oid: int) -> Standing | None:
    entries = store.list(layout.table_prefix(oid))
    if not entries:
        return None
    try:
        return Standing.from_dict(json.loads(store.get(entries[-1].key)))
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{entries[-1].key} cannot be read") from error


def _keep(store: Store, look: Standing) -> None:
    entries = store.list(layout.table_prefix(look.oid))
    number = int(entries[-1].key.rsplit("/", 1)[-1].split(".")[0]) + 1 if entries else 0
    raise_mark(store, layout.table_key(look.oid, number), json.dumps(look.to_dict()).encode())
