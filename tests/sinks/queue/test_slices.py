"""A batch is rendered and sent in slices, and nobody can tell from what is sent."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from tailrace.decode import TableChanges
from tailrace.errors import SinkError
from tailrace.model.change import COMMIT_LSN, ORDINAL
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import Message
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.json_columns import Style
from tailrace.sinks.queue.sender import RequestLimits, Sender, Sought
from tailrace.sinks.queue.slices import ROWS_AT_ONCE, slices
from tailrace.storage import MemoryStore
from tests.sinks.queue.servers import STREAM, open_queue
from tests.sinks.source import Source, batch_of, relation

KEYS = 40_000
"""Fewer than there are rows in a slice, and no divisor: each key comes in several slices."""

WINDOW = 1000


class CountingQueue:
    """Takes everything up to a place, if one is told; counts the messages that there are."""

    kind = "webhook"

    def __init__(self) -> None:
        self.places: list[str] = []
        self.lanes: dict[str, str] = {}
        self.count_peak = 0
        self.fails_after: int | None = None
        self.disorder = 0

    def sender(self, stream: str = STREAM) -> Sender:
        return _CountingSender(self)

    def take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.disorder += self.lanes.get(message.lane, "") > message.place
            self.lanes[message.lane] = message.place
            self.places.append(message.place)


class _CountingSender:
    reads_back = False
    limits = RequestLimits(message_count=500, request_bytes=1 << 20, message_bytes=1 << 20)

    def __init__(self, queue: CountingQueue) -> None:
        self._queue = queue

    def send(self, messages: Sequence[Message]) -> list[Failure | None]:
        queue = self._queue
        if queue.fails_after is not None and len(queue.places) > queue.fails_after:
            return [Failure(Kind.INFRASTRUCTURE, "it is down", "")] * len(messages)
        if len(queue.places) % (1 << 14) < len(messages):
            alive = sum(isinstance(each, Message) for each in gc.get_objects())
            queue.count_peak = max(queue.count_peak, alive)
        queue.take(messages)
        return [None] * len(messages)

    def arrived(self, sought: Sought) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        pass


def many_changes(count: int) -> TableChanges:
    """Updates of one table, as one transaction has them."""
    source = Source(relation(columns={"id": 20}))
    source.insert(id=0)
    row = source.take()
    rows = row.rows.take(np.zeros(count, np.int64))
    columns = {"id": np.arange(count) % KEYS, ORDINAL: np.arange(count)}
    for name, values in columns.items():
        at = rows.column_names.index(name)
        rows = rows.set_column(at, rows.field(name), pa.array(values, rows.field(name).type))
    return TableChanges(row.relation, rows)


def test_no_more_messages_are_held_at_once_than_a_slice_has() -> None:
    count = 2 * ROWS_AT_ONCE + 20_000
    queue = CountingQueue()
    sink = open_queue(queue, MemoryStore(), window_count=WINDOW)
    gc.collect()
    # What tests before this one may have left behind is not counted.
    gc.freeze()
    sink.write(batch_of(1, many_changes(count), stream=STREAM))
    gc.unfreeze()
    sink.close()
    assert len(queue.places) == len(set(queue.places)) == count
    assert queue.disorder == 0, "each key in its order, also from slice to slice"
    assert KEYS < queue.count_peak <= ROWS_AT_ONCE


def test_f081_batch_that_is_interrupted_in_a_later_slice_repeats_at_most_a_window() -> None:
    store, queue, count = MemoryStore(), CountingQueue(), ROWS_AT_ONCE + 20_000
    batch = batch_of(1, many_changes(count), stream=STREAM)
    queue.fails_after = ROWS_AT_ONCE + 5 * WINDOW
    sink = open_queue(queue, store, window_count=WINDOW)
    with pytest.raises(SinkError):
        sink.write(batch)
    sink.close()
    queue.fails_after = None
    sink = open_queue(queue, store, window_count=WINDOW)
    sink.write(batch)
    sink.close()
    assert len(set(queue.places)) == count
    assert len(queue.places) - count <= WINDOW


def test_slices_are_the_batch_in_the_order_of_the_log() -> None:
    orders, items = Source(), Source(relation("items"))
    for at in range(40):
        for source in (orders, items)[: 1 + at % 2]:
            source.lsn = 0x1000 + 0x10 * at
            source.insert(id=at)
    # A key that changes is two messages of one row; a TRUNCATE of both tables has one offset.
    orders.update(3, id=1003)
    orders.lsn = items.lsn = 0x9000
    for source in (orders, items):
        source.truncate()
    tables = [orders.take(), items.take()]
    render = Renderer(STREAM, Style.DEBEZIUM).changes
    for row_count in (1, 7, 1000):
        parts = list(slices(tables, row_count))
        assert [message for part in parts for message in render(part, 1)] == render(tables, 1)
        counts = [sum(table.rows.num_rows for table in part) for part in parts]
        assert all(each == row_count for each in counts[:-1]) and sum(counts) == 63


def test_batch_without_rows_is_one_slice() -> None:
    empty = Source().take()
    assert list(slices([], 5)) == [[]]
    assert list(slices([empty], 5)) == [[empty]]
    assert COMMIT_LSN in empty.rows.column_names
