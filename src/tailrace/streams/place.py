"""The place of one stream in a pipeline: what is wished of it, and the run that fulfils that.

A run ends before the next one begins, however long its last batch takes; other streams do not wait
for it. So there are never two runs of a stream in one process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError

from tailrace.control.stream_reports import Tally
from tailrace.errors import TailraceError
from tailrace.streams.running import RunningStream
from tailrace.streams.stream import Stream, StreamState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wished of a stream: another `revision` or `term` is another run.

    `stream` is None if its definition cannot be made out; `error` says why. One that is not
    `is_led` is delivered by another pipeline.
    """

    name: str
    stream: Stream | None
    revision: int = 0
    term: int = 0
    is_paused: bool = False
    is_led: bool = True
    error: TailraceError | None = None

    @property
    def runnable(self) -> Stream | None:
        """The stream if it is to be delivered here and now."""
        return self.stream if self.is_led and not self.is_paused else None


class Place:
    """Driven by one thread; `stop` may come from another one. Any may ask how it is: the run may
    end at any moment while they do.
    """

    def __init__(self, wish: Wish, make: Callable[[Stream], RunningStream]) -> None:
        self.wish = wish
        self._make = make
        self._fulfilled: Wish | None = None
        self._counted: tuple[Tally, RunningStream | None] = (Tally(), None)
        """What the runs before have delivered, and the run: both change at once."""
        self._ending: threading.Thread | None = None

    @property
    def state(self) -> StreamState:
        """As of now."""
        running = self._running
        if running is not None:
            return running.state
        return StreamState(self.wish.name, None, self.wish.error, self.wish.error is not None)

    @property
    def tally(self) -> Tally:
        """What was delivered here, by all runs."""
        before, running = self._counted
        return before if running is None else before.plus(running.tally)

    @property
    def epoch(self) -> int:
        """Under which the stream is delivered; 0 if it is not."""
        running = self._running
        return running.epoch if running is not None else 0

    @property
    def is_fenced(self) -> bool:
        """Whether another pipeline has taken the stream over."""
        running = self._running
        return running is not None and running.is_fenced

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come of it unless a person acts."""
        return self.wish.is_led and not self.wish.is_paused and self.state.is_stopped

    @property
    def is_idle(self) -> bool:
        """Whether no run is under way, nor coming to its end."""
        return self._running is None and not self._is_ending

    def step(self, now: float) -> None:
        """End a run that is not wished any more, begin one that is, or let it do its next step."""
        if self._is_ending:
            return
        running = self._running
        if running is not None and not self._is_wished:
            self._end(running)
        elif running is not None:
            running.step(now)
        elif (stream := self.wish.runnable) is not None:
            self._fulfilled = self.wish
            self._counted = (self.tally, self._make(stream))

    def withdraw(self) -> None:
        """Nothing is wished of it any more."""
        self.wish = replace(self.wish, stream=None, error=None)

    def stop(self) -> None:
        """End the run and wait for it."""
        if self._ending is not None:
            self._ending.join()
        if (running := self._running) is not None:
            _stop(running)

    @property
    def _running(self) -> RunningStream | None:
        return self._counted[1]

    @property
    def _is_ending(self) -> bool:
        return self._ending is not None and self._ending.is_alive()

    @property
    def _is_wished(self) -> bool:
        wish, fulfilled = self.wish, self._fulfilled
        assert fulfilled is not None
        same = (wish.revision, wish.term) == (fulfilled.revision, fulfilled.term)
        return wish.runnable is not None and same

    def _end(self, running: RunningStream) -> None:
        self._counted = (self.tally, None)
        name = f"tailrace-end-{self.wish.name}"
        self._ending = threading.Thread(target=_stop, args=[running], name=name, daemon=True)
        self._ending.start()
        logger.info("stream ended stream=%s", self.wish.name)


def _stop(running: RunningStream) -> None:
    try:
        running.stop()
    except (Py4JError, ConnectionError) as error:
        logger.debug("spark is gone, and its query with it error=%s", error)
