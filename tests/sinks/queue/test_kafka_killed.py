"""A process that delivers to Kafka, killed with SIGKILL while the broker owes it an answer."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tailrace.storage import FileStore
from tests import nursery
from tests.capture.running import wait_until
from tests.cli.processes import await_none
from tests.jars import jars
from tests.sinks.queue.broker import PATIENCE_S
from tests.sinks.queue.kafka_queue import KafkaQueue
from tests.streams import killed_sink
from tests.streams.test_killed_sinks import KEYS, history
from tests.streams.test_queue import events

ROUNDS = 30
"""Each is a job of its own, so that some are left when the first have arrived."""

WINDOW = 12


@pytest.mark.spark
@pytest.mark.server
def test_f081_f097_killed_kafka_process_loses_nothing_and_repeats_at_most_a_window(
    kafka: KafkaQueue, tmp_path: Path
) -> None:
    store, output = FileStore(tmp_path / "log"), tmp_path / "output.txt"
    history(store, ROUNDS)
    options = json.dumps({"type": "kafka", **kafka.options(), "window_count": WINDOW})
    told = (store.url, options, ",".join(jars("connector")), str(tmp_path / "work"))
    process = nursery.start(killed_sink.main, *told, failpoint="", output=output)
    try:
        wait_until(
            lambda: len(kafka.rows()) > KEYS or process.exitcode is not None,
            patience_s=PATIENCE_S,
        )
        kafka.broker.stop()
        process.kill()
        process.join()
        # What its Java has sent and the broker has not read yet arrives all the same.
        await_none(tmp_path / "work")
    finally:
        kafka.broker.go_on()
    assert process.exitcode == -signal.SIGKILL, output.read_text()
    killed_count = len(kafka.rows())
    assert killed_count < KEYS * ROUNDS
    killed_sink.deliver(store.url, options, kafka.session)
    received = kafka.received()
    found = events(received)
    assert {key: len(ids) for key, ids in found.items()} == dict.fromkeys(range(KEYS), ROUNDS)
    assert all(ids == sorted(ids) for ids in found.values())
    count = sum(message["op"] != "t" for message in received)
    assert count <= KEYS * ROUNDS + WINDOW
