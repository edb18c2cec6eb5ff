"""A queue in use: its sender, and how much of it is used at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tailrace.errors import SinkError
from tailrace.sinks.letters.message import Message
from tailrace.sinks.letters.parked import Parked, ToPark
from tailrace.sinks.letters.redrive import Sent
from tailrace.sinks.queue.course import Course
from tailrace.sinks.queue.limits import WindowLimits
from tailrace.sinks.queue.sender import Sender
from tailrace.sinks.queue.window import Window


class Outlet:
    """Sends from one thread at a time, with up to `request_count` requests side by side."""

    def __init__(
        self, sender: Sender, limits: WindowLimits, *, request_count: int, stop: threading.Event
    ) -> None:
        """`stop` ends whatever waits to be tried again."""
        self.sender = sender
        self._limits = limits
        self._request_count = request_count
        self._stop = stop
        self.retry_count = 0
        """How many messages were sent once more."""
        self._random = Random()
        self._pool = ThreadPoolExecutor(request_count, thread_name_prefix="tailrace-queue")

    def window(
        self,
        messages: Sequence[Message],
        parked: Parked,
        settled: Iterable[int] = (),
        *,
        saved: int = 0,
    ) -> Window:
        """One over these messages, some of which may be settled, and known to be."""
        request, limits = self.sender.limits, self._limits
        return Window(messages, parked, request, limits, self._random, settled=settled, saved=saved)

    def run(
        self,
        messages: Sequence[Message],
        window: Window,
        *,
        park: Callable[[Message, ToPark], None],
        save: Callable[[int], None],
    ) -> None:
        """Until everything is settled; raises SinkError if the queue takes no more for now."""
        course = Course(
            messages,
            window,
            self.sender,
            self._pool,
            request_count=self._request_count,
            park=park,
            save=save,
            stop=self._stop,
        )
        try:
            course.run()
        finally:
            self.retry_count += window.retry_count

    def send(self, messages: Sequence[Message], parked: Parked) -> Sent:
        """Send messages that are kept elsewhere until the queue has them."""
        window = self.window(messages, parked)
        refused: dict[str, ToPark] = {}
        error: SinkError | None = None

        def park(message: Message, why: ToPark) -> None:
            refused[message.place] = why

        try:
            self.run(messages, window, park=park, save=lambda _: None)
        except SinkError as raised:
            error = raised
        settled = {messages[at].place for at in (*range(window.frontier), *window.ahead)}
        return Sent(frozenset(settled - refused.keys()), refused, error)

    def close(self) -> None:
        """Let go of threads and connections; nothing is sent any more."""
        self._pool.shutdown()
        self.sender.close()
