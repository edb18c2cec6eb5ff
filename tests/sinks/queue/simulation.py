"""Whole lives of a stream to a queue: batches and loads, redrives beside and between them, runs
that die or are stopped anywhere, a queue that refuses some messages and fails at others.

Real are the sink and all that it keeps in a store in memory; made up is the queue. The seed decides
what happens, but not which thread comes first: a seed that fails may have to be run some times.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from random import Random
from typing import Final

from tailrace.errors import StoreError, TailraceError
from tailrace.log.epochs import take_epoch
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import TABLE_LANE, Message, sequence_of
from tailrace.sinks.letters.redrive import Request, Requests
from tailrace.sinks.queue.sender import RequestLimits, Sender, Sought
from tailrace.storage import MemoryStore
from tests.log.faulty_store import WatchedStore
from tests.sinks.queue.servers import STREAM, open_queue
from tests.sinks.source import Source, batch_of, load_of

KEYS_MAX: Final = 6
BATCHES_MAX: Final = 5
CHANGES_MAX: Final = 24
TRIES_MAX: Final = 8
"""In the last of them nobody dies and nothing fails in passing."""


class Process:
    """One that delivers, and its view of the store: nothing of a dead one gets there. It is dead
    after `life_effects`; as long as it is not, some puts and deletes fail, as `failing` says.
    """

    def __init__(self, store: MemoryStore, random: Random) -> None:
        self._random = random
        self.is_dead = False
        self.life_effects: int | None = None
        self.failing = 0.0
        self.store = WatchedStore(store, before=self._check)

    def _check(self, what: str, _: str) -> None:
        if what not in ("put", "delete"):
            return
        if self.life_effects is not None:
            self.life_effects -= 1
            self.is_dead |= self.life_effects < 0
        if self.is_dead or self._random.random() < self.failing:
            raise StoreError("this process is dead, or the store is busy")


class MemoryQueue:
    """Takes requests whole, in order, or message by message; each message is poison or it is not,
    as long as `poison` is not 0. `hiccups` is how often one is to be tried again. After
    `life_requests` the process that sends is dead.
    """

    kind = "webhook"

    def __init__(self, random: Random) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._poisoned: dict[str, bool] = {}
        self.is_ordered = random.random() < 0.4
        self.reads_back = random.random() < 0.4
        self.message_count = random.choice([1, 3, 8])
        self.poison = self.hiccups = 0.0
        self.life_requests: int | None = None
        self.process: Process | None = None
        self.received: list[tuple[float, Message]] = []

    def sender(self, stream: str = STREAM) -> Sender:
        return _MemorySender(self)

    def answer(self, messages: Sequence[Message]) -> list[Failure | None]:
        with self._lock:
            assert self.process is not None
            if self.life_requests is not None:
                self.life_requests -= 1
                self.process.is_dead |= self.life_requests < 0
            if self.process.is_dead:
                return [Failure(Kind.RETRIABLE, "hung up", "", is_answered=False)] * len(messages)
            found = [self._failure(message) for message in messages]
            if self.is_ordered and (first := next(filter(None, found), None)) is not None:
                return [first] * len(messages)
            taken = (message for message, failed in zip(messages, found, strict=True) if not failed)
            self.received += [(time.time(), message) for message in taken]
            return found

    def _failure(self, message: Message) -> Failure | None:
        if self._random.random() < self.hiccups:
            return Failure(Kind.RETRIABLE, "busy", "", is_shared=self.is_ordered)
        is_poison = self._poisoned.setdefault(message.place, self._random.random() < self.poison)
        if is_poison and self.poison:
            return Failure(Kind.POISON, "no such product", "", is_shared=self.is_ordered)
        return None

    def taken(self, sought: Sought) -> frozenset[str]:
        until_s = sought.until_s if sought.until_s is not None else time.time()
        with self._lock:
            return frozenset(
                message.delivery_id
                for at, message in self.received
                if sought.since_s <= at <= until_s
            )


class _MemorySender:
    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self.reads_back = queue.reads_back
        self.limits = RequestLimits(queue.message_count, 1 << 20, 1 << 20, 0, queue.is_ordered)

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        return self._queue.answer(messages)

    def arrived(self, sought: Sought) -> frozenset[str]:
        return self._queue.taken(sought)

    def close(self) -> None:
        """Nothing is held."""


class Simulation:
    """One stream's life; `run` raises AssertionError if a promise is broken."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._queue = MemoryQueue(Random(seed))
        self._store = MemoryStore()
        self._source = Source()
        self._loads: list[int] = []
        self._window = self._random.choice([4, 8, 1000])
        self._key_count = self._random.randint(2, KEYS_MAX)
        self._begin_run()

    def run(self) -> None:
        """All of it; at its end all letters are redriven."""
        for sequence in range(1, self._random.randint(2, BATCHES_MAX) + 1):
            self._deliver(sequence)
        self._queue.poison = self._queue.hiccups = 0.0
        self._may_die(0.0)
        self._ask([])
        self._serve()
        self._sink.close()
        assert not self._letters().waiting()
        self._check_rows()
        self._check_order()

    def _begin_run(self) -> None:
        take_epoch(self._store, STREAM, node="")
        self._process = self._queue.process = Process(self._store, Random(self._random.random()))
        self._queue.life_requests = None
        self._is_stopped = False
        self._sink = open_queue(self._queue, self._process.store, window_count=self._window)

    def _end_run(self, *, is_killed: bool) -> None:
        self._process.is_dead |= is_killed
        self._sink.close()
        self._begin_run()

    def _deliver(self, sequence: int) -> None:
        """One batch, or a load, until it is delivered; then what holds at rest is checked."""
        source, is_load = self._source, self._random.random() < 0.1
        for _ in range(self._random.randint(1, CHANGES_MAX)):
            self._change()
        changes, base = source.take(), source.base()
        batch, load = batch_of(sequence, changes, stream=STREAM), None
        if is_load:
            load = load_of(sequence, source, stream=STREAM)
            self._loads.append(sequence)
        self._queue.poison = self._random.choice([0.0, 0.1, 0.3])
        self._queue.hiccups = self._random.choice([0.0, 0.0, 0.3])
        for number in range(TRIES_MAX):
            is_last = number == TRIES_MAX - 1
            self._happen_before(is_last=is_last)
            with self._happening_beside(is_last=is_last):
                try:
                    self._sink.write(batch) if load is None else self._sink.load(load, base)
                    is_done = not self._process.is_dead
                except TailraceError:
                    is_done = False
            if self._process.is_dead or self._is_stopped or not is_done:
                self._end_run(is_killed=self._process.is_dead)
            if is_done:
                break
        assert is_done, "the last try is not disturbed"
        self._check_at_rest()

    def _change(self) -> None:
        source, random = self._source, self._random
        there = [key for (key,) in source.rows]
        free = [key for key in range(self._key_count) if key not in there]
        choice = random.random()
        if choice < 0.05:
            source.truncate()
        elif free and (choice < 0.35 or not there):
            source.insert(id=random.choice(free), n=source.lsn)
        elif there and choice < 0.45:
            source.delete(random.choice(there))
        elif there and free and choice < 0.5:
            source.update(random.choice(there), id=random.choice(free), n=source.lsn)
        elif there:
            source.update(random.choice(there), n=source.lsn)

    def _happen_before(self, *, is_last: bool) -> None:
        random = self._random
        self._queue.hiccups *= not is_last
        if random.random() < 0.9 and not is_last:
            self._may_die(0.2)
            self._ask_for_some()
            poison = self._queue.poison
            self._queue.poison = random.choice([0.0, 0.0, poison])
            self._serve()
            self._queue.poison = poison
        if random.random() < 0.2 and not is_last:
            self._end_run(is_killed=random.random() < 0.5)
        self._may_die(0.0 if is_last else 0.7)

    def _may_die(self, probability: float) -> None:
        random, process = self._random, self._process
        is_to_die = random.random() < probability
        is_of_effects = random.random() < 0.5
        self._queue.life_requests = process.life_effects = None
        if is_to_die and is_of_effects:
            process.life_effects = random.randint(0, 25)
        elif is_to_die:
            self._queue.life_requests = random.randint(0, 8)
        process.failing = 0.1 if random.random() < probability / 2 else 0.0

    @contextmanager
    def _happening_beside(self, *, is_last: bool) -> Iterator[None]:
        """What operators ask for is carried out beside the block, and the stream may be stopped."""
        random, beside = self._random, list[threading.Thread]()
        if random.random() < 0.4:
            self._ask_for_some()
            beside.append(threading.Thread(target=self._carry_out))
        if random.random() < 0.3 and not is_last:
            beside.append(threading.Timer(random.random() * 0.01, self._sink.stop))
            self._is_stopped = True
        for thread in beside:
            thread.start()
        yield
        for thread in beside:
            thread.join()

    def _ask_for_some(self) -> None:
        names = self._letters().names()
        count = min(len(names), self._random.randint(1, 3))
        is_all = self._random.random() < 0.5
        self._ask([] if is_all else [name.key for name in self._random.sample(names, count)])

    def _ask(self, keys: list[str]) -> None:
        request = Request.new("redrive", keys, who="somebody", now=time.time())
        Requests(self._store, STREAM).ask(request)

    def _serve(self) -> None:
        self._carry_out()
        if self._process.is_dead:
            self._end_run(is_killed=True)

    def _carry_out(self) -> None:
        with suppress(TailraceError):
            self._sink.serve_requests()

    def _letters(self) -> DeadLetters:
        return DeadLetters(self._store, STREAM)

    def _check_at_rest(self) -> None:
        """Of each row that does not wait the newest message is the last that has come, unless a
        TRUNCATE has come behind both.
        """
        waiting = {name.lane for name in self._letters().waiting()}
        if TABLE_LANE in waiting:
            return
        last: dict[str, str] = {}
        newest: dict[str, str] = {}
        for _, message in self._queue.received:
            if message.is_barrier:
                newest = {lane: place for lane, place in newest.items() if place > message.place}
            last[message.lane] = message.place
            newest[message.lane] = max(newest.get(message.lane, ""), message.place)
        assert {lane for lane in newest if last[lane] != newest[lane]} <= waiting
        if not waiting:
            self._check_rows()

    def _check_rows(self) -> None:
        """Whoever applies what has come has the rows of the source."""
        rows: dict[object, object] = {}
        for _, message in self._queue.received:
            change = json.loads(message.payload)
            if change["op"] == "t":
                rows.clear()
            elif change["op"] == "d":
                rows.pop(change["before"]["id"], None)
            else:
                rows[change["after"]["id"]] = change["after"]["n"]
        assert rows == {key: row["n"] for (key,), row in self._source.rows.items()}

    def _check_order(self) -> None:
        """Each row's messages have come in their order; where one comes again, so do all that had
        come behind it before anything newer does, or the table is loaded.
        """
        places: dict[tuple[str, int], list[str]] = defaultdict(list)
        for _, message in self._queue.received:
            load_count = bisect(self._loads, sequence_of(message.place))
            places[message.lane, load_count].append(message.place)
        for (lane, _), some in places.items():
            ranks = {place: rank for rank, place in enumerate(sorted(set(some)))}
            came = [-1, *(ranks[place] for place in some)]
            assert all(then <= before + 1 for before, then in pairwise(came)), (
                f"lane {lane}: {came}"
            )
