"""Why a query ended is told from what is left of it, and so is whether to try again."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.errors import PythonException

from tailrace.errors import (
    LogError,
    OffsetOutOfRange,
    SegmentCorrupt,
    SegmentMissing,
    SinkError,
    StoreError,
    TailraceError,
)
from tailrace.sinks.memory import MemorySink
from tailrace.spark.options import one_line_errors
from tailrace.storage import MemoryStore, ObjectMissing
from tailrace.streams import Stream
from tailrace.streams.failure import failure_of, failure_told
from tailrace.streams.lookout import Lookout
from tailrace.streams.running import RunningStream
from tailrace.streams.setbacks import Setbacks
from tests.log.faulty_store import WatchedStore
from tests.spark.made_log import MadeLog, Table

_TRACE = """[STREAM_FAILED] Query [id = x, runId = y] terminated with exception: Job aborted
Traceback (most recent call last):
  File "/x/tailrace/spark/options.py", line 46, in one_line_errors
    yield
tailrace.errors.{inner}: the log starts at 0/2000

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
tailrace.errors.{outer}: tailrace: the log starts at 0/2000 (start again)

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException
"""


@pytest.mark.parametrize("kind", [OffsetOutOfRange, StoreError, SegmentMissing, LogError])
def test_our_own_error_comes_back_from_its_text(kind: type[TailraceError]) -> None:
    failure = failure_told(_TRACE.format(inner=kind.__name__, outer=kind.__name__))
    assert failure.is_known
    assert type(failure.error) is kind
    assert str(failure.error) == "the log starts at 0/2000 (start again)"
    assert failure.error.retry == kind.retry


def test_class_of_another_module_is_an_error_of_the_log() -> None:
    failure = failure_told("tailrace.storage.store.ObjectMissing: tailrace: no object a in b")
    assert type(failure.error) is LogError
    assert not failure.error.retry


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("first line\n  File x\nValueError: wrong\n\tat org.apache", "ValueError: wrong"),
        ("a\npyspark.errors.exceptions.base.PySparkRuntimeError: [X] no\n", "PySparkRuntimeError"),
        ("[STREAM_FAILED] Query terminated: worker died\n=== more ===", "worker died"),
        ("AssertionError\n", "AssertionError"),
    ],
)
def test_unknown_error_is_told_by_its_last_line_and_may_pass(text: str, told: str) -> None:
    failure = failure_told(text)
    assert not failure.is_known
    assert failure.error.retry
    assert told in str(failure.error) and "\n" not in str(failure.error)


def test_error_raised_here_is_taken_as_it_is() -> None:
    error = SinkError("the lake is full", hint="make room")
    assert failure_of(error).error is error
    assert failure_of(error).is_known


@pytest.mark.parametrize(
    ("raised", "is_waited_for"),
    [
        (StoreError("access denied", hint="check the credentials", retry=False), True),
        (ObjectMissing("no object a"), False),
        (SegmentCorrupt("a is damaged"), False),
    ],
)
def test_f106_denied_access_to_the_log_is_waited_for_and_what_is_missing_or_corrupt_is_not(
    raised: LogError, is_waited_for: bool
) -> None:
    here = failure_of(raised)
    assert here.is_known and here.error.retry == is_waited_for
    assert (str(here.error), here.error.hint) == (str(raised), raised.hint)
    with pytest.raises(LogError) as caught, one_line_errors():
        raise raised
    told = failure_told(f"tailrace.errors.{caught.type.__name__}: {caught.value}")
    assert told.is_known and told.error.retry == is_waited_for


def test_f106_look_for_bases_that_is_denied_is_made_again() -> None:
    denied = False

    def deny(what: str, key: str) -> None:
        if denied:
            raise StoreError("access denied", retry=False)

    log = MadeLog(MemoryStore())
    lookout = Lookout(WatchedStore(log.store, before=deny), ("public.*",), lambda _: True)
    log.insert(Table(), 1)
    denied = True
    assert not lookout.finds_others(())
    denied = False
    assert lookout.finds_others(())


def test_error_of_a_task_comes_back_from_what_spark_makes_of_it() -> None:
    text = _TRACE.format(inner="SegmentCorrupt", outer="SegmentCorrupt")
    failure = failure_of(PythonException(text))
    assert failure.is_known
    assert type(failure.error) is SegmentCorrupt


def test_bug_raised_here_is_unknown() -> None:
    failure = failure_of(KeyError("x"))
    assert not failure.is_known and failure.error.retry
    assert str(failure.error) == "the query failed: KeyError: 'x'"


class StoppingSetbacks(Setbacks):
    """Those of a stream that stops for good just after somebody has asked for its error."""

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name == "error" and found is None:
            self.error, self.is_final = LogError("gone"), True
        return found


def test_a_stream_that_stops_while_it_is_looked_at_has_a_reason(tmp_path: Path) -> None:
    stream = Stream("orders", ["public.*"], lambda _: MemorySink())
    running = RunningStream(stream, Mock(), MemoryStore(), tmp_path)
    running._setbacks = StoppingSetbacks("orders")
    for _ in range(2):
        state = running.state
        assert not state.is_stopped or state.error is not None
