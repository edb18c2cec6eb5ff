"""Verifications that come round by themselves, beside the streams that they are about.

When the last one was is kept in the store, so that a restart neither skips one nor repeats it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.errors import TailraceError
from tailrace.storage import Store
from tailrace.verify.result import StreamResult
from tailrace.verify.stored import last_result, put_result

logger = logging.getLogger(__name__)

POLL_S: Final = 5.0
RETRY_S: Final = 300.0
"""After one that failed, the next is not tried earlier than this."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A stream that is verified every so often; `run` does it."""

    stream: str
    every_s: float
    run: Callable[[], StreamResult]


class Schedule:
    """Runs plans in a thread of its own, one at a time, until it is stopped."""

    def __init__(
        self,
        store: Store,
        plans: Sequence[Plan],
        stop: threading.Event,
        may_run: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`may_run` says whether a stream is this process's to verify."""
        self._store = store
        self._may_run = may_run
        self._plans = plans
        self._stop = stop
        self._not_before: dict[str, float] = {}

    def start(self) -> None:
        """Begin, unless there is nothing to do. The thread dies with the process."""
        if self._plans:
            threading.Thread(target=self._run, name="tailrace-verify", daemon=True).start()

    def step(self, now: float) -> None:
        """Verify what is due at `now`, in seconds since 1970."""
        for plan in self._plans:
            if not self._stop.is_set() and self._is_due(plan, now):
                self._verify(plan, now)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self.step(time.time())

    def _is_due(self, plan: Plan, now: float) -> bool:
        if now < self._not_before.get(plan.stream, 0.0) or not self._may_run(plan.stream):
            return False
        try:
            last = last_result(self._store, plan.stream)
        except TailraceError as error:
            logger.debug("the last verification cannot be read error=%s", error)
            return False
        return last is None or now >= last.began_s + plan.every_s

    def _verify(self, plan: Plan, now: float) -> None:
        try:
            result = plan.run()
            put_result(self._store, result)
        except Exception as error:
            # Also what Spark raises: the others are still to be verified, and this one again.
            self._not_before[plan.stream] = now + min(RETRY_S, plan.every_s)
            logger.warning(
                "stream not verified stream=%s error=%s",
                *(plan.stream, error),
                exc_info=None if isinstance(error, TailraceError) else error,
            )
            return
        unlike = [table.table for table in result.tables if not table.equal]
        told = logger.warning if unlike else logger.info
        told(
            "stream verified stream=%s position=%s tables=%d unlike=%s seconds=%.1f",
            plan.stream,
            result.position,
            len(result.tables),
            ",".join(unlike) or "none",
            result.seconds,
        )
