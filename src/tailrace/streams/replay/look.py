"""Looks for requests for replays of one stream, and has them carried out in a thread of its own.

A replay that fails touches neither the stream nor the slot. What may pass is tried again, with
backoff, from where it is; what needs a person ends it, with the reason in its outcome. Once
another pipeline has taken the stream over, the replay is left to that one as well.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from tailrace.backoff import Backoff
from tailrace.errors import LogError, LogFenced, SegmentCorrupt, StoreError, TailraceError
from tailrace.log.epochs import Fence
from tailrace.storage import Store
from tailrace.streams.failure import failure_of
from tailrace.streams.replay.outcome import Outcome, outcome_of
from tailrace.streams.replay.request import Request
from tailrace.streams.replay.requests import Replays
from tailrace.streams.replay.run import Replaying, Stopped

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often to look for a request."""

UNKNOWN_FAILURES_MAX: Final = 3


class ReplayLookout:
    """The replays of one stream in this process. Driven by one thread."""

    def __init__(self, store: Store, stream: str, replaying: Replaying) -> None:
        self._store = store
        self._stream = stream
        self._replays = Replays(store)
        self._replaying = replaying
        self._backoff = Backoff(Random())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_at = 0.0
        self._is_swept = False
        self._trouble: str | None = None
        """What was told of it; None if that was another process."""
        self.replayed_count = 0
        """How many changes the replays that are over have delivered again."""

    @property
    def is_at_work(self) -> bool:
        """Whether a replay runs."""
        return self._thread is not None and self._thread.is_alive()

    def step(self, now: float, fence: Fence) -> None:
        """Look for a request, if it is time to; `fence` is that of the stream."""
        if self.is_at_work or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        try:
            request = self._replays.current(self._stream)
        except StoreError as error:
            logger.debug("requests for replays cannot be read error=%s", error)
            return
        except SegmentCorrupt:
            self._discard(fence)
            return
        self._sweep()
        if request is not None:
            name = f"tailrace-replay-{self._stream}"
            self._thread = threading.Thread(
                target=self.serve, args=[request, fence], name=name, daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End after the batch that is under way; the next process goes on."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def serve(self, request: Request, fence: Fence) -> None:
        """Carry a request out, unless told to stop, or overtaken, before it is over."""
        unknown = 0
        self._backoff.reset()
        self._trouble = None
        while not self._stop.is_set():
            try:
                outcome = self._replays.outcome(request) or self._carry_out(request, fence)
                self._finish(request, outcome, fence)
                return
            except Stopped:
                return
            except Exception as raised:
                if self._replaying.ending.is_told:
                    # The sink was told to stop: that is no trouble of the request's.
                    return
                if isinstance(raised, LogFenced) and self._is_overtaken(fence):
                    logger.info("replay left to another stream=%s", self._stream)
                    return
                failure = failure_of(raised)
                unknown += not failure.is_known
                trace = None if failure.is_known else raised
                logger.warning(
                    "replay interrupted stream=%s error=%s",
                    *(self._stream, failure.error),
                    exc_info=trace,
                )
                if unknown > UNKNOWN_FAILURES_MAX:
                    self._finish(request, self._failed(request, failure.error), fence)
                    return
                self._tell_trouble(request, failure.error)
                self._stop.wait(self._backoff.next_s())

    def _sweep(self) -> None:
        """Once: a process that was killed may have left what keeps the log."""
        if not self._is_swept:
            with suppress(StoreError):
                self._replays.sweep(self._stream)
                self._is_swept = True

    def _discard(self, fence: Fence) -> None:
        try:
            outcome = self._replays.discard(self._stream, fence)
        except LogError as error:
            logger.debug("request for a replay stays stream=%s error=%s", self._stream, error)
            return
        if outcome is not None:
            logger.warning(
                "replay over stream=%s id=%s state=%s note=%s",
                *(self._stream, outcome.id, outcome.state, outcome.note),
            )

    def _tell_trouble(self, request: Request, error: TailraceError) -> None:
        told = _with_hint(error)
        if told != self._trouble:
            # A store that cannot be reached is trouble that cannot be told.
            with suppress(StoreError):
                self._replays.tell_trouble(request, told)
                self._trouble = told

    def _gets_on(self, request: Request) -> None:
        self._backoff.reset()
        if self._trouble != "":
            with suppress(StoreError):
                self._replays.clear_trouble(request)
                self._trouble = ""

    def _is_overtaken(self, fence: Fence) -> bool:
        """Whether it is not only a number that was taken by the one before us."""
        try:
            fence.check()
        except LogFenced:
            return True
        except StoreError as error:
            logger.debug("epochs cannot be read error=%s", error)
        return False

    def _carry_out(self, request: Request, fence: Fence) -> Outcome:
        try:
            gets_on = partial(self._gets_on, request)
            return self._replaying.carry_out(request, self._stop, fence, gets_on)
        except LogFenced:
            # Another process carries it out: what becomes of it is for that one to say.
            raise
        except TailraceError as error:
            if failure_of(error).error.retry:
                raise
            return self._failed(request, error)

    def _failed(self, request: Request, error: TailraceError) -> Outcome:
        progress = self._replays.progress(self._stream)
        count = progress.change_count if progress is not None else 0
        return outcome_of(request, "failed", count, _with_hint(error))

    def _finish(self, request: Request, outcome: Outcome, fence: Fence) -> None:
        self._replays.finish(request, outcome, fence)
        self.replayed_count += outcome.change_count
        logger.info(
            "replay over stream=%s id=%s state=%s changes=%d note=%s",
            *(self._stream, request.id, outcome.state, outcome.change_count, outcome.note),
        )


def _with_hint(error: TailraceError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)
