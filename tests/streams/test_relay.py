"""Batches between Spark and their delivery: one is delivered while the next is decoded, in order,
and nothing follows a batch that has failed.
"""

from __future__ import annotations

import threading
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from tailrace.streams.relay import Relay

PATIENCE_S = 120.0


class Packed:
    """Stands for the data frame of a batch; `decoded` is set when Spark has its rows."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        self.rows = pa.table({"number": [number]})
        self.error = error
        self.decoded = threading.Event()

    def toArrow(self) -> pa.Table:
        self.decoded.set()
        if self.error is not None:
            raise self.error
        return self.rows

    def to(self, relay: Relay) -> None:
        relay(cast(DataFrame, self), 0)


class Deliveries:
    """Delivers when it is let."""

    def __init__(self, *, failing: int = -1) -> None:
        self.failing = failing
        self.let = threading.Semaphore(0)
        self.begun: list[int] = []
        self.done: list[int] = []

    def __call__(self, rows: pa.Table) -> None:
        number = rows["number"][0].as_py()
        self.begun.append(number)
        assert self.let.acquire(timeout=PATIENCE_S)
        if number == self.failing:
            raise ValueError("the sink is full")
        self.done.append(number)


def test_next_batch_is_decoded_while_one_is_delivered_and_waits_for_it() -> None:
    deliver = Deliveries()
    relay = Relay(deliver)
    Packed(1).to(relay)
    second = Packed(2)
    spark = threading.Thread(target=second.to, args=[relay])
    spark.start()
    assert second.decoded.wait(PATIENCE_S)
    assert deliver.done == [] and 2 not in deliver.begun and spark.is_alive()
    deliver.let.release()
    spark.join(PATIENCE_S)
    assert deliver.done == [1] and not spark.is_alive()
    deliver.let.release()
    relay.wait()
    assert deliver.done == [1, 2] and relay.failure is None


def test_f102_no_batch_follows_one_that_was_not_delivered() -> None:
    deliver = Deliveries(failing=1)
    deliver.let.release(9)
    relay = Relay(deliver)
    Packed(1).to(relay)
    relay.wait()
    assert isinstance(relay.failure, ValueError), "seen without another batch"
    for number in (2, 3):
        with pytest.raises(RuntimeError, match="a batch was not delivered"):
            Packed(number).to(relay)
    assert deliver.begun == [1]
    assert isinstance(relay.failure, ValueError)


def test_batch_that_cannot_be_decoded_lets_the_one_before_it_end() -> None:
    deliver = Deliveries()
    deliver.let.release(9)
    relay = Relay(deliver)
    Packed(1).to(relay)
    with pytest.raises(RuntimeError, match="a batch was not delivered"):
        Packed(2, KeyError("a task failed")).to(relay)
    assert deliver.done == [1]
    assert isinstance(relay.failure, KeyError)
