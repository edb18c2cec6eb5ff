"""A program that delivers a log to a queue and does what operators ask for, for a test that kills
it on the way.
"""

from __future__ import annotations

import json
import os

import pytest

from tailrace.log.epochs import take_epoch
from tailrace.sinks.queue import sink as queue_sink
from tailrace.sinks.queue.outbox import Outbox
from tailrace.storage import Store, open_store
from tests.capture.running import wait_until
from tests.sinks.queue.servers import STREAM, Away, Queue, Target, open_queue
from tests.streams.by_hand import Run

WINDOW = 4


def main(log: str, kind: str, options: str, dead: str = "") -> None:
    """As `deliver` does; `dead` are the options of a webhook for copies of dead letters."""
    os.environ.update(NO_PROXY="127.0.0.1", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    copies = Away("webhook", json.loads(dead)) if dead else None
    with pytest.MonkeyPatch.context() as patch:
        # Requests are carried out when they are asked for here, and not beside it.
        patch.setattr(queue_sink, "REQUESTS_S", 3600.0)
        deliver(Away(kind, json.loads(options)), open_store(log), copies)


def told(queue: Queue, store: Store, dead: Queue | None = None) -> tuple[str, ...]:
    """The arguments of such a process."""
    copies = [json.dumps(dead.options())] if dead is not None else []
    return (store.url, queue.kind, json.dumps(queue.options()), *copies)


def deliver(queue: Target, store: Store, dead: Target | None = None) -> None:
    """To the end of the log, in small batches and windows; then what operators ask for. Whoever
    delivers takes the stream over, and ends when `dead` has every copy.
    """
    fence = take_epoch(store, STREAM, node="test")
    sink = open_queue(queue, store, window_count=WINDOW, dead=dead)
    try:
        Run(store, sink, stream=STREAM, changes_max=8, fence=fence).to_end()
        sink.serve_requests()
        if dead is not None:
            wait_until(lambda: not len(Outbox(store, STREAM)))
    finally:
        sink.close()
