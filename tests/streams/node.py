"""One of several nodes, in a process of its own: `python -m tests.streams.node JSON`.

It delivers what it leads, batch by batch and without Spark, which has no part in who delivers.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogFenced
from tailrace.log.epochs import Fence, take_epoch
from tailrace.postgres.lock_session import LockSession
from tailrace.sinks import Sink, open_sink
from tailrace.sinks.memory import MemorySink
from tailrace.storage import Store, open_store
from tailrace.streams import Stream
from tailrace.streams.control import Control
from tailrace.streams.place import Wish
from tests.streams.by_hand import Run

SOURCE: Final = "tailrace_main"
WINDOW: Final = 4


@dataclass(frozen=True)
class Task:
    """What a node is told; the server gives up its session after `silence_s`."""

    dsn: str
    log: str
    lake: str
    url: str
    silence_s: int = 3


class Delivering:
    """A stream under one epoch."""

    def __init__(self, task: Task, store: Store, wish: Wish) -> None:
        self.wish = wish
        self._store = store
        self._fence: Fence = take_epoch(store, wish.name, node="node")
        options: dict[str, object] = {"type": "delta", "path": task.lake, "engine": "deltalake"}
        if wish.name == "hook":
            options = {"type": "webhook", "url": task.url, "window_count": WINDOW}
        self._sink: Sink = open_sink(options, store=store, stream=wish.name)
        self._fence.check()

    def go_on(self) -> None:
        """By one batch, so that the other stream has its turn."""
        name = self.wish.name
        Run(self._store, self._sink, stream=name, changes_max=20, fence=self._fence).step()

    def close(self) -> None:
        self._sink.close()


def main(argument: str) -> None:
    """Until killed."""
    task = Task(**json.loads(argument))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    store = open_store(task.log)
    control = Control(
        lambda: LockSession(task.dsn, sender_timeout_s=task.silence_s),
        store,
        source=SOURCE,
        declared=[],
        resolve=lambda kept: Stream(kept.name, kept.definition.tables, lambda _: MemorySink()),
    )
    control.start(list)
    led: dict[str, Delivering] = {}
    while True:
        control.wake()
        for wish in control.wishes:
            _step(control, task, store, led, wish)
        time.sleep(0.02)


def _step(
    control: Control, task: Task, store: Store, led: dict[str, Delivering], wish: Wish
) -> None:
    delivering = led.get(wish.name)
    if delivering is not None and (not wish.is_led or delivering.wish.term != wish.term):
        led.pop(wish.name).close()
    elif wish.is_led:
        try:
            if delivering is None:
                led[wish.name] = Delivering(task, store, wish)
                print("leads", wish.name, flush=True)
            led[wish.name].go_on()
        except LogFenced as error:
            print("fenced", wish.name, error, flush=True)
            control.was_fenced(wish)
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
