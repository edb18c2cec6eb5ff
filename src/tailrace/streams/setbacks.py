"""What has interrupted a stream, whether it is tried again, and when."""

from __future__ import annotations

import logging
from random import Random
from typing import Final

from tailrace.backoff import Backoff
from tailrace.errors import TailraceError
from tailrace.streams.failure import Failure

logger = logging.getLogger(__name__)

UNKNOWN_FAILURES_MAX: Final = 8
"""So often in a row, without a batch delivered between, is something tried again of which nobody
has said that it may pass.
"""


class Setbacks:
    """Those of one stream. `error` is what it waits for or has stopped at; once `is_final`, nothing
    helps but a person.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._backoff = Backoff(Random())
        self._unknown_count = 0
        self._again_at = 0.0
        self.error: TailraceError | None = None
        self.is_final = False

    def is_over(self, now: float) -> bool:
        """Whether it may be tried again."""
        return now >= self._again_at

    def failed(self, failure: Failure, now: float, *, cause: BaseException | None) -> None:
        """It was interrupted; each reason is told once."""
        before, error = self.error, failure.error
        self.error = error
        self._unknown_count += not failure.is_known
        self.is_final = not error.retry or self._unknown_count > UNKNOWN_FAILURES_MAX
        trace = None if failure.is_known else cause
        if self.is_final:
            logger.error("stream stopped stream=%s error=%s", self._stream, error, exc_info=trace)
            return
        self.try_later(now)
        if before is None or str(before) != str(error):
            logger.warning(
                "stream interrupted stream=%s error=%s", self._stream, error, exc_info=trace
            )

    def try_later(self, now: float) -> None:
        """Try again after a while that grows from time to time."""
        self._again_at = now + self._backoff.next_s()

    def try_at(self, at: float) -> None:
        """Nothing is wrong: go on at that time."""
        self._again_at = at

    def passed(self) -> None:
        """It is healthy: the next setback is a first one."""
        self._backoff.reset()
        self._unknown_count = 0

    def cleared(self) -> None:
        """Nothing is wrong any more."""
        self.error = None
