"""Drives a window: sends its requests side by side, waits, puts dead letters, saves the frontier.

Whatever ends it, the requests under way are waited for and counted: nothing that the queue has
taken is sent again by this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tailrace.errors import SinkError
from tailrace.failpoint import failpoint
from tailrace.sinks.letters.failure import Failure
from tailrace.sinks.letters.message import Message
from tailrace.sinks.letters.parked import ToPark
from tailrace.sinks.queue.sender import Sender
from tailrace.sinks.queue.window import Window

_Answers = Future[list[Failure | None]]


class Course:
    """Some messages on their way through a window."""

    def __init__(
        self,
        messages: Sequence[Message],
        window: Window,
        sender: Sender,
        pool: ThreadPoolExecutor,
        *,
        request_count: int,
        park: Callable[[Message, ToPark], None],
        save: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        """`park` keeps a message among the dead letters; `save` makes a frontier durable."""
        self._messages = messages
        self._window = window
        self._sender = sender
        self._pool = pool
        self._request_count = request_count
        self._park = park
        self._save = save
        self._stop = stop
        self._requests: dict[_Answers, list[int]] = {}

    def run(self) -> None:
        """Until everything is settled; raises SinkError if the queue takes no more for now."""
        try:
            while not self._window.is_over:
                self._settle_letters()
                if self._window.is_half_passed:
                    self._save_frontier()
                self._check_stop()
                self._send()
                if not self._requests and self._window.halted is not None:
                    raise _halted(self._window.halted)
                self._wait()
        finally:
            wait(self._requests)
            self._note(set(self._requests))

    def _settle_letters(self) -> None:
        while parking := self._window.to_park():
            for each in parking:
                self._park(self._messages[each.at], each)
                self._window.settle(each.at)

    def _save_frontier(self) -> None:
        """Unless all is over: then the stream's own record says so in a moment."""
        frontier = self._window.frontier
        if not self._window.is_over:
            self._save(frontier)
            self._window.saved(frontier)

    def _check_stop(self) -> None:
        """What gets on may come to its end; what is to be tried again is left to the next run."""
        if self._stop.is_set() and self._window.wait_until() is not None:
            if not self._sender.reads_back:
                # One that is asked must be asked from where the window began.
                self._save_frontier()
            raise SinkError("the stream was told to stop", retry=True)

    def _send(self) -> None:
        now = time.monotonic()
        while len(self._requests) < self._request_count and (taken := self._window.take(now)):
            messages = [self._messages[at] for at in taken]
            self._requests[self._pool.submit(self._sender.send, messages)] = taken
            failpoint("queue.after_send")

    def _wait(self) -> None:
        """For an answer, for something to be due, or for neither if there is work at once."""
        due = self._window.wait_until()
        patience_s = None if due is None else max(0.0, due - time.monotonic())
        if len(self._requests) == self._request_count or self._window.halted is not None:
            # Nothing more is sent before an answer.
            patience_s = None
        if self._requests:
            done, _ = wait(self._requests, timeout=patience_s, return_when=FIRST_COMPLETED)
            failpoint("queue.before_answer")
            self._note(done)
        elif patience_s is not None:
            failpoint("queue.before_retry")
            self._stop.wait(patience_s)
        else:
            self._save_frontier()

    def _note(self, done: set[_Answers]) -> None:
        for answer in done:
            taken = self._requests.pop(answer)
            self._window.answered(taken, answer.result(), time.monotonic())


def _halted(failure: Failure) -> SinkError:
    return SinkError(f"the queue takes no messages: {failure}", hint=failure.hint, retry=True)
