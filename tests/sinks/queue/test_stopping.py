"""A stream that stops does not wait for its queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

from tailrace.sinks.letters.failure import Kind
from tailrace.storage import MemoryStore
from tailrace.streams import Stream
from tailrace.streams.aside import Aside
from tailrace.streams.running import RunningStream
from tests.capture.running import wait_until
from tests.sinks.queue.servers import STREAM, WebhookQueue, open_queue
from tests.sinks.queue.test_conformance import batches, check


def test_stream_that_stops_leaves_what_waits_to_be_tried_again_to_the_next_run(
    receiver: WebhookQueue,
) -> None:
    store, (_, made) = MemoryStore(), batches()
    receiver.faults.fail(3, Kind.RETRIABLE)
    receiver.asks_to_wait = True
    sink = open_queue(receiver, store)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, made[0])
        wait_until(receiver.received)
        sink.stop()
        assert "told to stop" in str(writing.exception())
    sink.close()
    receiver.faults.clear()
    sink = open_queue(receiver, store)
    for batch in made:
        sink.write(batch)
    sink.close()
    check(receiver)


def test_stream_that_is_stopped_tells_its_queue_before_it_waits_for_it(
    receiver: WebhookQueue, tmp_path: Path
) -> None:
    store = MemoryStore()
    sink = open_queue(receiver, store)
    stream = Stream(STREAM, ["public.*"], lambda _: sink)
    running = RunningStream(stream, Mock(), store, tmp_path)
    running._sink = sink
    told: list[bool] = []
    # What looks for what has arrived, at the beginning of a load for instance.
    running._preparation = Aside(lambda _: told.append(sink._stop.wait(60.0)), name="load")
    running.stop()
    assert told == [True]
