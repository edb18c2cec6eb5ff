"""Gives every published table its base, while streams run.

A thread of its own looks now and then which published tables have none. What goes wrong is said
once and tried again, a table that alone cannot be read after longer and longer waits: streams go on
with the tables that they have.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, Self

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.backoff import Backoff
from tailrace.bases.group import TableResult
from tailrace.bases.take import BaseTaker
from tailrace.control.captured import captured_tables
from tailrace.errors import TailraceError
from tailrace.log import read_genesis
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import connect, source_error
from tailrace.storage import Store

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
AFTER_FAILURE_S: Final = 10.0
PUT_OFF_S: Final = 60.0
PUT_OFF_S_MAX: Final = 3600.0
"""How long a table waits that could not be read: reading it again costs the source something."""

STOP_S: Final = 20.0

_KNOWN: Final = (TailraceError, PySparkException, Py4JError, ConnectionError)


def tables_in_want(dsn: str, names: SourceNames, store: Store) -> list[int]:
    """The oids of captured tables that have no complete base, or need a newer one; raises
    SourceError.
    """
    try:
        with connect(dsn) as conn:
            captured = captured_tables(conn, names)
    except psycopg.Error as error:
        raise source_error(error) from error
    newest = newest_positions(store)
    wanted = wanted_bases(store, newest)
    return [each.oid for each in captured if each.oid not in newest or each.oid in wanted]


@dataclass(slots=True)
class _PutOff:
    """A table that could not be read, and why."""

    backoff: Backoff = field(
        default_factory=lambda: Backoff(Random(), first_s=PUT_OFF_S, limit_s=PUT_OFF_S_MAX)
    )
    until_s: float = 0.0
    said: str = ""


class AutomaticBases:
    """`with AutomaticBases(…): …`; ends with the block, and gives up a base that is under way."""

    def __init__(
        self,
        store: Store,
        names: SourceNames,
        *,
        dsn: Callable[[], str | None],
        taker: Callable[[str, threading.Event], BaseTaker],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._names = names
        self._dsn = dsn
        self._taker = taker
        self._clock = clock
        self._stop = threading.Event()
        self._said = ""
        self._put_off: dict[int, _PutOff] = {}
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
                self.turn()
                self._said, wait_s = "", INTERVAL_S
            except Exception as error:
                # Whatever it is: without this thread no table would ever be taken up.
                wait_s, reason = AFTER_FAILURE_S, str(error).partition("\n")[0]
                if not self._stop.is_set() and reason != self._said:
                    self._said = reason
                    trace = None if isinstance(error, _KNOWN) else error
                    logger.warning("bases are not taken error=%s", reason, exc_info=trace)

    def turn(self) -> None:
        """Take the bases that are due; raises TailraceError, or what Spark raises."""
        dsn = self._dsn()
        if dsn is None or read_genesis(self._store) is None:
            return
        in_want = partial(tables_in_want, dsn, self._names, self._store)
        waiting = in_want()
        self._put_off = {oid: self._put_off[oid] for oid in waiting if oid in self._put_off}
        late = {oid for oid, each in self._put_off.items() if self._clock() < each.until_s}
        due = [oid for oid in waiting if oid not in late]
        if not due:
            return
        for result in self._taker(dsn, self._stop).take(due, still_wanted=in_want):
            if result.error is not None:
                self._postpone(result)

    def _postpone(self, result: TableResult) -> None:
        put_off = self._put_off.setdefault(result.oid, _PutOff())
        put_off.until_s = self._clock() + put_off.backoff.next_s()
        if str(result.error) != put_off.said:
            put_off.said = str(result.error)
            logger.error("base not taken table=%s error=%s", result.table, result.error)
