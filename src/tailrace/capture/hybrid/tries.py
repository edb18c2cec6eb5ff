"""Tries for a lock that writers hold. All who come later wait behind one who waits for it, so each
try is short at first, and there is more time between two than either takes.

A try may have to be longer than a transaction of the writers: with many of them, some have always
begun just before. So each waits for longer than the last, within a bound. One that has no prospect
has held up nobody: the next, which may have one, is made at once.

Tables share the thread of all that a leader does beside streaming. So a turn waits for so long in
all; the tables whose turn it was not come first in the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import uniform
from typing import Final

from tailrace.errors import NoProspect, NotLeading, SourceError
from tailrace.postgres.catalog import TableInfo

GROWTH: Final = (1, 1, 2, 3, 5)
"""How long each try of one turn waits, as a multiple of `lock_timeout`."""

WAIT_MS_MAX: Final = 2_000
"""No try waits for longer, unless `lock_timeout` itself is more."""

PAUSE: Final = (1.0, 2.0)
"""How long writers then have to themselves, as a multiple of the wait; never in step with them."""

TURN_S_MAX: Final = 5.0
"""No table's tries begin in a turn that has spent so long on those of others."""

_NAP_S: Final = 0.1


class Tries:
    """One leader's."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._spent_s = 0.0
        self._put_off: int | None = None
        self._should_go_on: Callable[[], bool] = lambda: True

    def begin_turn(
        self, tables: Sequence[TableInfo], should_go_on: Callable[[], bool]
    ) -> list[TableInfo]:
        """The tables in the order in which this turn is to look at them: from the first that the
        last one has put off.
        """
        oids = [table.oid for table in tables]
        first = oids.index(self._put_off) if self._put_off in oids else 0
        self._spent_s, self._put_off, self._should_go_on = 0.0, None, should_go_on
        return [*tables[first:], *tables[:first]]

    def has_time(self, oid: int) -> bool:
        """Whether this turn has time for the tries of a table; else it is put off."""
        if self._spent_s < TURN_S_MAX and self._should_go_on():
            return True
        if self._put_off is None:
            self._put_off = oid
        return False

    def often(self, act: Callable[[int], None], *, lock_timeout_ms: int) -> None:
        """Until it works, a few times: `act` is told how long to wait, in ms. Raises SourceError if
        none did, or if none can, or if there is an end to all.
        """
        began = self._clock()
        try:
            self._try_on(act, lock_timeout_ms)
        finally:
            self._spent_s += self._clock() - began

    def _try_on(self, act: Callable[[int], None], lock_timeout_ms: int) -> None:
        for number, growth in enumerate(GROWTH, start=1):
            wait_ms = max(min(growth * lock_timeout_ms, WAIT_MS_MAX), lock_timeout_ms)
            try:
                act(wait_ms)
                return
            except NotLeading:
                raise
            except SourceError as error:
                if not error.retry or number == len(GROWTH):
                    raise
                if not isinstance(error, NoProspect):
                    self._pause(wait_ms / 1000 * uniform(*PAUSE))
                if not self._should_go_on():
                    raise

    def _pause(self, pause_s: float) -> None:
        ends = self._clock() + pause_s
        while (left_s := ends - self._clock()) > 0 and self._should_go_on():
            self._sleep(min(left_s, _NAP_S))
