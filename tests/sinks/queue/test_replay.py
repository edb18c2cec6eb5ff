"""A replay to a queue that can be read back, killed on its way: only the rest is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.storage import FileStore
from tests.sinks.queue.servers import KinesisQueue
from tests.spark.made_log import MadeLog
from tests.streams.killed_replay import flow_to
from tests.streams.replaying import time_of
from tests.streams.test_replay_deaths import history, serve_killed


@pytest.mark.parametrize("step", ["queue.after_send:2", "replay.after_batch:2"])
def test_f096_f098_replay_to_kinesis_sends_only_the_rest_after_a_death(
    kinesis: KinesisQueue, tmp_path: Path, step: str
) -> None:
    log = MadeLog(FileStore(tmp_path / "log"))
    history(log)
    options: dict[str, object] = {"type": "kinesis", **kinesis.options()}
    flow = flow_to(log.store, options)
    flow.go_on()
    request = flow.ask(time_of(1))
    serve_killed(flow, options, step, tmp_path / "output.txt")
    assert flow.serve().change_count == 9
    sources = [each["source"] for each in kinesis.received() if each["op"] not in "tr"]
    live = [source["event_id"] for source in sources if "replay" not in source]
    again = [source["event_id"] for source in sources if source.get("replay") == request.id]
    # What had arrived of the replay was read back, and no live message was taken for it.
    assert sorted(live) == sorted(again) and len({*again}) == len(again)
