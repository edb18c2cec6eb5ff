"""A stream that stops does not wait for its queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tailrace.sinks.letters.failure import Kind
from tailrace.storage import MemoryStore
from tests.capture.running import wait_until
from tests.sinks.queue.servers import WebhookQueue, open_queue
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
