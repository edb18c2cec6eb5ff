"""Decides which messages of a batch to send when. No clock, no sockets, no threads.

Messages are known by their places in the batch. The window is what may be on its way: messages from
the saved frontier on, limited by count and by bytes. Everything before the frontier is settled:
delivered, or durably among the dead letters. So what is sent again after a crash is at most one
window.

Order: a lane's messages are sent one after the other, the next when the one before is settled; only
a request that is taken whole may hold several. While one waits to be tried again, the later ones of
its lane wait. A message that cannot be delivered parks its lane: it and every later one are to be
put among the dead letters, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random

from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import Message
from tailrace.sinks.letters.parked import Parked, ToPark
from tailrace.sinks.queue.errors import oversize
from tailrace.sinks.queue.lanes import Lanes
from tailrace.sinks.queue.limits import WindowLimits
from tailrace.sinks.queue.sender import RequestLimits
from tailrace.sinks.queue.tries import Tries


class Window:
    """One batch on its way."""

    def __init__(
        self,
        messages: Sequence[Message],
        parked: Parked,
        request: RequestLimits,
        limits: WindowLimits,
        random: Random,
        *,
        settled: Iterable[int] = (),
        saved: int = 0,
    ) -> None:
        """`settled` are messages of which it is known that they are, the first `saved` of them
        durably.
        """
        self._messages = messages
        self._parked = parked
        self._request = request
        self._limits = limits
        self._sizes = [len(each.payload) + request.overhead_bytes for each in messages]
        self._ends = list(accumulate(self._sizes, initial=0))
        self._is_settled = bytearray(len(messages))
        for at in settled:
            self._is_settled[at] = 1
        self._lanes = Lanes(messages)
        self._ready: deque[int] = deque()
        self._taken: set[int] = set()
        self._tries = Tries(limits, random)
        self._parking: list[ToPark] = []
        self._next = self.frontier = 0
        self.halted: Failure | None = None
        self._advance()
        self._saved = min(saved, self.frontier)

    @property
    def retry_count(self) -> int:
        """How many messages were to be sent once more."""
        return self._tries.retry_count

    @property
    def is_over(self) -> bool:
        """Whether everything is settled."""
        return self.frontier == len(self._messages)

    @property
    def ahead(self) -> frozenset[int]:
        """What is settled beyond the frontier."""
        beyond = range(self.frontier, len(self._messages))
        return frozenset(at for at in beyond if self._is_settled[at])

    @property
    def is_half_passed(self) -> bool:
        """Whether so much is settled that it is worth saving."""
        count = self.frontier - self._saved
        size = self._ends[self.frontier] - self._ends[self._saved]
        return 2 * count >= self._limits.message_count or 2 * size >= self._limits.bytes_max

    def saved(self, frontier: int) -> None:
        """It is durably known that everything before is settled: the window opens."""
        assert self._saved <= frontier <= self.frontier, "more is saved than is settled"
        self._saved = frontier

    def take(self, now: float) -> list[int]:
        """The messages of the next request, in order; none if there is nothing to send now."""
        if self.halted is not None:
            return []
        self._admit()
        if due := self._tries.due(now):
            return due
        taken = self._fresh()
        self._taken.update(taken)
        for at in taken:
            self._tries.begin(at, now)
        return taken

    def wait_until(self) -> float | None:
        """When something is to be tried again."""
        return self._tries.next_at

    def to_park(self) -> list[ToPark]:
        """What has to be put among the dead letters, in order; each is told of once."""
        parking, self._parking = self._parking, []
        return parking

    def answered(
        self, taken: Sequence[int], outcomes: Sequence[Failure | None], now: float
    ) -> None:
        """What has become of a request."""
        failed: list[tuple[int, Failure]] = []
        for at, failure in zip(taken, outcomes, strict=True):
            if failure is None:
                self.settle(at)
            else:
                failed.append((at, failure))
        for at, each in failed:
            is_poison = each.is_shared and each.kind is Kind.POISON
            self._tries.failed(at, is_suspect=is_poison and len(failed) > 1)
        is_lost = any(each.is_shared and self._is_lost(at, each, now) for at, each in failed)
        if is_lost and len(failed) > 1:
            self._halve([at for at, _ in failed], now)
        elif failed:
            self._failed(failed, now)

    def settle(self, at: int) -> None:
        """The message is delivered, or durably among the dead letters."""
        self._is_settled[at] = 1
        self._taken.discard(at)
        self._tries.forget(at)
        for head in self._lanes.leave(at):
            if head not in self._taken:
                self._head(head)
        self._advance()

    def _admit(self) -> None:
        """Let messages into the window as long as there is room; one always fits."""
        limits = self._limits
        while self._next < len(self._messages):
            count = self._next - self._saved
            size = self._ends[self._next + 1] - self._ends[self._saved]
            if count and (count >= limits.message_count or size > limits.bytes_max):
                return
            at, self._next = self._next, self._next + 1
            if not self._is_settled[at] and self._lanes.enter(at):
                self._head(at)

    def _head(self, at: int) -> None:
        """Nothing of its lane is before it any more."""
        size, limit = self._sizes[at], self._request.message_bytes
        if self._parked.holds(self._messages[at]):
            self._park(at, None)
        elif size > limit:
            self._park(at, oversize(size, limit))
        else:
            self._ready.append(at)

    def _park(self, at: int, failure: Failure | None) -> None:
        self._parked.add(self._messages[at])
        self._parking.append(ToPark(at, self._tries.attempt_count(at), failure))

    def _advance(self) -> None:
        while self.frontier < len(self._messages) and self._is_settled[self.frontier]:
            self.frontier += 1
        self._next = max(self._next, self.frontier)

    def _fresh(self) -> list[int]:
        request = self._request
        taken: list[int] = []
        room = request.request_bytes
        while self._ready and len(taken) < request.message_count:
            head = self._ready[0]
            if taken and self._sizes[head] > room:
                break
            taken.append(self._ready.popleft())
            room -= self._sizes[head]
            for at in self._lanes.behind(head) if request.is_ordered else ():
                size = self._sizes[at]
                is_full = len(taken) == request.message_count or size > room
                if is_full or size > request.message_bytes:
                    break
                taken.append(at)
                room -= size
        return taken

    def _halve(self, rest: list[int], now: float) -> None:
        """Any of these may be the reason: the first half is tried again by itself."""
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        self._taken.difference_update(second)
        self._ready.extendleft(at for at in reversed(second) if self._lanes.is_head(at))
        self._tries.again(first, now)

    def _failed(self, failed: list[tuple[int, Failure]], now: float) -> None:
        again: list[int] = []
        for at, failure in failed:
            if failure.kind is Kind.INFRASTRUCTURE:
                self.halted = failure
            elif not self._lanes.is_head(at):
                # It goes the way of the one before it, which is in the same request.
                again.append(at)
            elif self._is_lost(at, failure, now):
                self._taken.discard(at)
                self._park(at, failure)
            elif self._tries.is_exhausted(at, now):
                self.halted = failure
            else:
                again.append(at)
        self._try_again(again, now, wait_s=max(failure.wait_s for _, failure in failed))

    def _try_again(self, again: list[int], now: float, *, wait_s: float) -> None:
        """What is behind one that is parked now waits for that; the rest is one request again."""
        for at in again:
            if self._parked.holds(self._messages[at]):
                self._taken.discard(at)
        rest = [at for at in again if at in self._taken]
        if rest:
            self._tries.put_off(rest, now, wait_s=wait_s)

    def _is_lost(self, at: int, failure: Failure, now: float) -> bool:
        """Whether the message has to be a dead letter, if it is the reason."""
        if failure.kind is not Kind.RETRIABLE:
            return failure.kind is Kind.POISON
        can_park = self._limits.parks_exhausted and failure.is_answered
        return can_park and self._tries.is_exhausted(at, now)
