"""Gives every published table its base, while streams run.

A thread of its own looks now and then which published tables have none. What goes wrong is said
once and tried again: streams go on with the tables that they have.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import psycopg

from tailrace.bases.take import BaseTaker
from tailrace.errors import TailraceError
from tailrace.log import read_genesis
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.publication import published_tables
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import connect, source_error
from tailrace.storage import Store

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
AFTER_FAILURE_S: Final = 10.0
STOP_S: Final = 20.0


def tables_in_want(dsn: str, names: SourceNames, store: Store) -> list[int]:
    """The oids of published tables that have no complete base, or need a newer one; raises
    SourceError.
    """
    try:
        with connect(dsn) as conn:
            published = published_tables(conn, names)
    except psycopg.Error as error:
        raise source_error(error) from error
    newest = newest_positions(store)
    wanted = wanted_bases(store, newest)
    oids = [member.relation_oid for member in published]
    return [oid for oid in oids if oid not in newest or oid in wanted]


class AutomaticBases:
    """`with AutomaticBases(…): …`; ends with the block, and gives up a base that is under way."""

    def __init__(
        self,
        store: Store,
        names: SourceNames,
        *,
        dsn: Callable[[], str | None],
        taker: Callable[[str, threading.Event], BaseTaker],
    ) -> None:
        self._store = store
        self._names = names
        self._dsn = dsn
        self._taker = taker
        self._stop = threading.Event()
        self._said = ""
        self._refused: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="tailrace-bases", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            try:
                self._turn()
                self._said, wait_s = "", INTERVAL_S
            except TailraceError as error:
                wait_s = AFTER_FAILURE_S
                if not self._stop.is_set() and str(error) != self._said:
                    self._said = str(error)
                    logger.warning("bases are not taken error=%s", error)

    def _turn(self) -> None:
        dsn = self._dsn()
        if dsn is None or read_genesis(self._store) is None:
            return
        waiting = tables_in_want(dsn, self._names, self._store)
        wanted = [oid for oid in waiting if oid not in self._refused]
        if not wanted:
            return
        for result in self._taker(dsn, self._stop).take(wanted):
            if result.error is not None:
                # Until the pipeline is started again, or someone asks for it by name.
                self._refused.add(result.oid)
                logger.error("base not taken table=%s error=%s", result.table, result.error)
