"""A stream ends at once although its queue is down and is to be tried for a day: whoever corrects
its options, or ends the pipeline, does not wait until the last try.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from tailrace.log.epochs import Fence
from tailrace.sinks import Sink, open_sink
from tailrace.sinks.letters.failure import Kind
from tailrace.storage import MemoryStore, Store
from tailrace.streams import Stream
from tailrace.streams.ending import Ending
from tailrace.streams.replay.look import ReplayLookout
from tailrace.streams.replay.run import Replaying
from tailrace.streams.running import RunningStream
from tests.capture.running import wait_until
from tests.sinks.queue.servers import WebhookQueue, webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.running import PATIENCE_S, RunningPipeline

OFTEN = 1_000_000


@pytest.fixture
def queue() -> Iterator[WebhookQueue]:
    """One that is up."""
    with webhook() as queue:
        yield queue


def _patient(queue: WebhookQueue, store: Store) -> Callable[[str], Sink]:
    """Opens a sink that tries each message for a day."""
    often = {"retry_max_attempts": OFTEN, "retry_max_elapsed": 86400}
    options = {"type": "webhook", "url": queue.url, **often}
    return lambda name: open_sink(options, store=store, stream=name)


def _fail(queue: WebhookQueue, key: int) -> None:
    queue.faults.fail(key, Kind.RETRIABLE, times=OFTEN)


def _wait_for_tries(queue: WebhookQueue, key: int) -> None:
    """Until it was tried again: the next try is later and later."""
    wait_until(lambda: queue.faults.keys[str(key)][1] < OFTEN - 2, patience_s=PATIENCE_S)


def test_load_to_a_queue_that_is_down_ends_with_its_stream(
    queue: WebhookQueue, tmp_path: Path
) -> None:
    log, table = MadeLog(MemoryStore(), has_bases=False), Table()
    table.insert(1, "a", 1)
    log.base_of(table)
    _fail(queue, 1)
    stream = Stream(STREAM, ["public.*"], _patient(queue, log.store))
    running = RunningStream(stream, Mock(), log.store, tmp_path)
    running.step(0.0)
    _wait_for_tries(queue, 1)
    running.stop()
    assert running._sink is None and not running.state.is_stopped


def test_f097_batch_for_a_queue_that_is_down_ends_with_its_pipeline(
    spark: SparkSession, log: MadeLog, queue: WebhookQueue, tmp_path: Path
) -> None:
    table = Table()
    log.insert(table, 1)
    stream = Stream(STREAM, ["public.*"], _patient(queue, log.store))
    with RunningPipeline(spark, log.store, tmp_path, stream) as at_work:
        at_work.wait_for(log.end, STREAM)
        _fail(queue, 2)
        log.insert(table, 2)
        _wait_for_tries(queue, 2)
    assert not at_work.pipeline.is_left, "the batch has come to its end"
    queue.faults.clear()
    with RunningPipeline(spark, log.store, tmp_path, stream) as at_work:
        at_work.wait_for(log.end, STREAM)
    assert {each["after"]["id"] for each in queue.received() if each["after"]} == {1, 2}


def test_replay_to_a_queue_that_is_down_ends_with_its_stream_and_goes_on_later(
    log: MadeLog, queue: WebhookQueue
) -> None:
    log.insert(Table(), 1, 3)
    flow = Replayed(log.store, _patient(queue, log.store))
    flow.go_on()
    _fail(queue, 2)
    flow.ask(time_of(1))
    request, ending = flow.replays.current(STREAM), Ending()
    assert request is not None
    stream = Stream(STREAM, ["public.*"], flow.open_sink)
    replaying = Replaying(stream, log.store, flow.turn, flow._read, ending=ending)
    lookout = ReplayLookout(log.store, STREAM, replaying)
    fence = Fence(log.store, STREAM, 0)
    serving = threading.Thread(target=lookout.serve, args=[request, fence], daemon=True)
    serving.start()
    _wait_for_tries(queue, 2)
    ending.tell()
    serving.join()
    assert flow.replays.outcome(request) is None
    progress = flow.replays.progress(STREAM)
    assert progress is not None and not progress.trouble, "that it has ended is no trouble"
    queue.faults.clear()
    assert flow.serve().state == "done"
