"""A program that tells a target database a story in which rows are refused, and that redrives them,
for a test that kills it on the way. Told again from its beginning, the story ends in the same rows.
"""

from __future__ import annotations

import psycopg
import pytest

from tailrace.log.epochs import take_epoch
from tailrace.sinks import open_sink
from tailrace.sinks.letters.redrive import Request, Requests
from tailrace.sinks.postgres import PostgresSink
from tailrace.sinks.postgres import sink as postgres_sink
from tailrace.storage import open_store
from tests.sinks.source import Source, batch_of

STREAM = "lake"
BAD = 2000
CHECK = "ALTER TABLE orders ADD CONSTRAINT small CHECK (n < 1000)"
NO_CHECK = "ALTER TABLE orders DROP CONSTRAINT IF EXISTS small"
LAST = 3


def tell(sink: PostgresSink) -> Source:
    """Row 2 is refused, its later changes wait, and the others flow."""
    source = Source()
    for key in (1, 2, 3):
        source.insert(id=key, doc=f"large {key}", n=key)
    sink.write(batch_of(1, source.take()))
    source.update(2, n=BAD, unchanged=["doc"])
    source.update(1, n=10)
    source.insert(id=4, n=BAD)
    sink.write(batch_of(2, source.take()))
    source.update(2, n=20, unchanged=["doc"])
    source.delete(4)
    source.update(3, n=30)
    sink.write(batch_of(LAST, source.take()))
    return source


def main(log: str, dsn: str, mode: str) -> None:
    """Tell it, then take the constraint away and redrive what waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_sink, "REQUESTS_S", 3600.0)
        redrive_all(log, dsn, mode)


def redrive_all(log: str, dsn: str, mode: str) -> Source:
    """The whole story; whoever tells it takes the stream over."""
    store = open_store(log)
    take_epoch(store, STREAM, node="test")
    options = {"type": "postgres", "dsn": dsn, "mode": mode}
    sink = open_sink(options, store=store, stream=STREAM)
    assert isinstance(sink, PostgresSink)
    source = tell(sink)
    with psycopg.connect(dsn) as conn:
        conn.execute(NO_CHECK)
    requests = Requests(store, STREAM)
    if not requests.pending():
        requests.ask(Request.new("redrive", [], who="test", now=0.0))
    sink.serve_requests()
    sink.close()
    return source
