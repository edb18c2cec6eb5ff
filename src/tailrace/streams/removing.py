"""Ends a stream that is wanted no more, with whatever is under way for it."""

from __future__ import annotations

import time
from typing import Final

from tailrace.log.epochs import take_epoch
from tailrace.sinks.letters.redrive import Requests
from tailrace.sinks.queue.outbox import drop_copies
from tailrace.storage import Store
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay import Replays
from tailrace.streams.replay.keys import record_name

_WHY: Final = "the stream was removed"


def remove_stream(store: Store, name: str) -> None:
    """Whoever delivers the stream is fenced, its replay is over, and retention waits for neither.
    Its sink is left alone, and its dead letters are; what was to be sent of them is not, since a
    stream that gets the name later may have another sink.
    """
    # First: whoever ends a batch later would register the stream with retention again.
    take_epoch(store, name, node="")
    for each in (name, record_name(name)):
        Requests(store, each).end(_WHY, now=time.time())
        drop_copies(store, each)
    # Behind what it does not name: by its record a stream is known, so that this is done again.
    StreamRecord(store, name).remove()
    Replays(store).end(name, _WHY)
