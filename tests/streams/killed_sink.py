"""A program that delivers a log to a sink, for a test that kills it on the way."""

from __future__ import annotations

import json
import os

from tailrace.sinks import open_sink
from tailrace.storage import open_store
from tests.streams.by_hand import Run

STREAM = "orders"
CHANGES_MAX = 8


def main(log: str, options: str) -> None:
    """To the end of the log, in small batches."""
    os.environ.update(NO_PROXY="127.0.0.1", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    store = open_store(log)
    sink = open_sink(json.loads(options), store=store, stream=STREAM)
    Run(store, sink, stream=STREAM, changes_max=CHANGES_MAX).to_end()
    sink.close()
