"""Ends a stream that is wanted no more, with whatever is under way for it."""

from __future__ import annotations

from tailrace.log.epochs import take_epoch
from tailrace.storage import Store
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay import Replays


def remove_stream(store: Store, name: str) -> None:
    """Whoever delivers the stream is fenced, its replay is over, and retention waits for neither.
    Its sink is left alone.
    """
    # First: whoever ends a batch later would register the stream with retention again.
    take_epoch(store, name, node="")
    StreamRecord(store, name).remove()
    Replays(store).end(name, "the stream was removed")
