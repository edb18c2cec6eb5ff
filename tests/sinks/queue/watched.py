"""A queue whose sender is watched: what is on its way at a time, and what was saved as settled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tailrace.sinks.letters.failure import Failure
from tailrace.sinks.letters.message import Message
from tailrace.sinks.queue.sender import RequestLimits, Sender, Sought
from tailrace.storage import Data, MemoryStore
from tests.sinks.queue.servers import STREAM, Queue


class WatchedStore(MemoryStore):
    """Remembers, for each frontier that is saved, whether the queue had taken all before it."""

    def __init__(self, queue: WatchedQueue) -> None:
        super().__init__()
        self._queue = queue
        self.is_ahead = False

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        if "/sent/" in key:
            count = int(key.rpartition("-")[2])
            self.is_ahead |= not set(range(count)) <= self._queue.taken
            super().put_new(key, data, is_bulk=is_bulk)
            self._queue.saved = count
        else:
            super().put_new(key, data, is_bulk=is_bulk)


class WatchedQueue:
    """Another queue, watched: messages are numbered within their batch, which is told first."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.faults = queue.faults
        self.kind = queue.kind
        self.lock = threading.Lock()
        self.count_peak = self.bytes_peak = self.request_peak = self.unanswered = 0
        self._request_count = 0
        self.begin([])

    def begin(self, messages: Sequence[Message]) -> None:
        """These come next."""
        self._sizes = [len(message.payload) for message in messages]
        self._at = {message.place: at for at, message in enumerate(messages)}
        self.taken: set[int] = set()
        self.saved = 0

    def sender(self, stream: str = STREAM) -> Sender:
        return _WatchedSender(self, self._queue.sender(stream))

    def received(self) -> list[dict[str, Any]]:
        return self._queue.received()

    def sending(self, messages: Sequence[Message]) -> None:
        """A request begins: the window reaches from what is saved to its last message."""
        with self.lock:
            end = 1 + max(self._at[message.place] for message in messages)
            self.count_peak = max(self.count_peak, end - self.saved)
            self.bytes_peak = max(self.bytes_peak, sum(self._sizes[self.saved : end]))
            self._request_count += 1
            self.request_peak = max(self.request_peak, self._request_count)

    def sent(self, messages: Sequence[Message], outcomes: Sequence[Failure | None]) -> None:
        """It has ended."""
        with self.lock:
            self._request_count -= 1
            for message, failure in zip(messages, outcomes, strict=True):
                if failure is None:
                    self.taken.add(self._at[message.place])
                self.unanswered += failure is not None and not failure.is_answered


class _WatchedSender:
    def __init__(self, queue: WatchedQueue, sender: Sender) -> None:
        self._queue = queue
        self._sender = sender

    @property
    def limits(self) -> RequestLimits:
        return self._sender.limits

    @property
    def reads_back(self) -> bool:
        return self._sender.reads_back

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        self._queue.sending(messages)
        outcomes = self._sender.send(messages)
        self._queue.sent(messages, outcomes)
        return outcomes

    def arrived(self, sought: Sought) -> frozenset[str]:
        return self._sender.arrived(sought)

    def close(self) -> None:
        self._sender.close()
