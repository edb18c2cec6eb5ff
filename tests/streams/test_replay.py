"""What was delivered is delivered once more: marked, in order, and never an older state over a newer
one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.model import PgType
from tailrace.sinks import Sink, open_sink
from tailrace.sinks.queue import sink as queue_sink
from tailrace.storage import FileStore
from tests.decode.wire import UNSENT
from tests.server import Database
from tests.sinks.queue.servers import WebhookQueue, webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.running import lake_rows


def lake(path: Path, mode: str = "upsert", **more: object) -> Callable[[str], Sink]:
    """Opens a lake."""
    options = {"type": "delta", "path": str(path), "mode": mode, "engine": "deltalake", **more}
    return lambda name: open_sink(options, stream=name)


def hook(queue: WebhookQueue, store: FileStore, envelope: str) -> Callable[[str], Sink]:
    """Opens a webhook."""
    options = {"type": "webhook", "url": queue.url, "envelope": envelope}
    return lambda name: open_sink(options, store=store, stream=name)


@pytest.fixture
def orders() -> Table:
    return Table()


def damage(path: Path, predicate: str) -> None:
    """Somebody deletes rows of a lake table."""
    DeltaTable(str(path / "public/orders")).delete(predicate)


def test_f105_replay_puts_back_what_was_lost_and_nothing_old_over_new(
    log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    log.insert(orders, 1, 6)
    log.commit(orders, orders.update(2, 2, "then", None), orders.delete(3))
    log.commit(orders, orders.update(1, 1, "now", None), orders.update(4, 40, "moved", None))
    log.commit(orders, orders.insert(3, "again", None))
    flow = Replayed(log.store, lake(tmp_path / "lake"), changes_max=2)
    flow.go_on()
    damage(tmp_path / "lake", "id IN (2, 5)")
    outcome = flow.replay(time_of(1), time_of(2))
    assert (outcome.state, outcome.change_count, outcome.note) == ("done", 8, "")
    assert lake_rows(tmp_path / "lake") == orders.rows
    assert flow.replays.current(STREAM) is None
    # The stream goes on behind it.
    log.commit(orders, orders.update(5, 5, "later", None))
    flow.go_on()
    assert lake_rows(tmp_path / "lake") == orders.rows
