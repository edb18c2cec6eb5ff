"""Queues that streams deliver to, in many moods: down, failing, throttling, slow, silent,
forbidding; and there are rows whose messages they refuse for good.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from random import Random
from typing import Final

from moto.server import ThreadedMotoServer

from tailrace.sinks.letters.failure import Kind
from tests.sinks.queue.servers import Faults, Gate, KinesisQueue, WebhookQueue, id_of

MOODS: Final = ("down", "failing", "throttling", "slow", "silent", "forbidding")
TIMEOUT_S: Final = 3.0
"""How long streams wait for an answer: a silent server has taken what it does not answer for."""

POISONED: Final = 29
"""One row of so many is refused."""


class Mood(Faults):
    """What a queue is like now. The rows that it refuses are the same until it is `healed`."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._remainder = random.randrange(POISONED)
        self.is_healed = False
        self.unanswered = 0
        self.now = ""

    def change(self, mood: str) -> None:
        """From now on; empty for a good one."""
        self.now = mood
        self.is_down = mood == "down"

    def strikes(self, payload: bytes) -> Kind | None:
        """What becomes of one message."""
        with self.lock:
            chance = self._random.random()
        if self.now == "forbidding":
            return Kind.INFRASTRUCTURE
        if self.now == "failing" or (self.now == "throttling" and chance < 0.2):
            return Kind.RETRIABLE
        row = id_of(json.loads(payload))
        is_poison = isinstance(row, int) and row % POISONED == self._remainder
        return Kind.POISON if is_poison and not self.is_healed else None

    def hold(self, taken_count: int) -> None:
        """Between a request that was taken and its answer."""
        if self.now == "slow":
            time.sleep(0.2)
        elif self.now == "silent":
            with self.lock:
                self.unanswered += 1
            time.sleep(TIMEOUT_S + 0.5)


@contextmanager
def bad_webhook(random: Random) -> Iterator[tuple[WebhookQueue, Mood]]:
    """An HTTP receiver."""
    with closing(WebhookQueue()) as queue:
        queue.faults = mood = Mood(random)
        queue.status_of[Kind.RETRIABLE] = random.choice([503, 500, 429])
        yield queue, mood


@contextmanager
def bad_kinesis(random: Random) -> Iterator[tuple[KinesisQueue, str, Mood]]:
    """A stream on moto's server, and its address."""
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ.update(keys, NO_PROXY="127.0.0.1")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = gate = Gate(server._server.app)
    address = "http://{}:{}".format(*server.get_host_and_port())
    try:
        with closing(KinesisQueue(address, gate)) as queue:
            queue.faults = gate.faults = mood = Mood(random)
            yield queue, address, mood
    finally:
        server.stop()
