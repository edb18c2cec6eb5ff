"""Options of the format are read strictly, and a mistake is one line that says what to write."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import StructType

from tailrace.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRange,
    SchemaError,
    StoreError,
    TailraceError,
)
from tailrace.model import Lsn, Offset
from tailrace.spark.options import ERROR_PREFIX, ReadOptions, one_line_errors
from tailrace.spark.place import BEFORE_BASE, Place
from tailrace.spark.planning import LogPartition
from tailrace.spark.table import TableReader
from tailrace.storage import MemoryStore, ObjectMissing
from tests.spark.made_log import MadeLog, Table

BASICS = {"log": "file:/nowhere", "table": "public.orders"}
SECOND_US = 1_000_000


def _options(log: MadeLog, **options: str) -> ReadOptions:
    return ReadOptions.of({"log": log.store.url, "table": "public.orders", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabel": "x", **BASICS}, "no option tabel"),
        ({"path": "/somewhere", **BASICS}, "no option path"),
        ({"log": "file:/nowhere"}, "needs the option table"),
        ({"table": "public.orders"}, "needs the option log"),
        ({"startingtimestamp": "yesterday", **BASICS}, "startingTimestamp 'yesterday' is not a"),
        ({"maxChangesPerTrigger": "0", **BASICS}, "maxChangesPerTrigger '0' is not a positive"),
        ({"maxBytesPerTrigger": "many", **BASICS}, "maxBytesPerTrigger 'many' is not a positive"),
        (
            {"startingOffset": "0/1", "startingTimestamp": "2026-01-15", **BASICS},
            "startingOffset and startingTimestamp exclude each other",
        ),
        (
            {"endingOffset": "0/1", "endingTimestamp": "2026-01-15", **BASICS},
            "endingOffset and endingTimestamp exclude each other",
        ),
    ],
)
def test_mistakes_are_told_by_the_documented_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReadOptions.of(options)


def test_keys_may_be_in_any_case() -> None:
    options = ReadOptions.of({"LOG": "file:/l", "Table": "a.b", "maxchangespertrigger": "5"})
    assert (options.log, options.table, options.limits.changes_max) == ("file:/l", "a.b", 5)


@pytest.mark.parametrize("text", ["0/1200:3", '{"v":1,"lsn":4608,"ord":3}'])
def test_positions_are_read_as_people_and_as_spark_write_them(log: MadeLog, text: str) -> None:
    options = _options(log, startingOffset=text, endingOffset=text)
    expected = Offset(Lsn(0x1200), 3)
    assert options.start(options.reader()) == Place(expected)
    assert options.end(options.reader()) == expected


@pytest.mark.parametrize("text", ["tomorrow", "{}", '{"v":2,"lsn":1,"ord":1}', "0/1:x", ""])
def test_what_is_no_position_is_refused(log: MadeLog, text: str) -> None:
    options = _options(log, startingOffset=text)
    with pytest.raises(ConfigError, match=r"startingOffset .* is not a position"):
        options.start(options.reader())


def test_read_is_of_the_base_and_all_that_follows_unless_told_otherwise(log: MadeLog) -> None:
    log.insert(Table(), 1)
    options = _options(log)
    reader = options.reader()
    assert (options.start(reader), options.end(reader)) == (BEFORE_BASE, log.end)
    assert not options.is_bounded
    bounded = _options(log, endingTimestamp="2100-01-01")
    assert bounded.start(reader) == Place(log.begin), "who names an end names a range of changes"


def test_table_without_a_base_is_read_from_the_beginning() -> None:
    log = MadeLog(MemoryStore(), has_bases=False)
    log.insert(Table(), 1)
    options = _options(log)
    assert options.start(options.reader()) == Place(log.begin)
    with pytest.raises(ConfigError, match=r"public\.orders has no base"):
        _options(log, startingOffset="base").start(options.reader())


@pytest.mark.parametrize(
    "place", [BEFORE_BASE, Place(Offset(Lsn(7), 3), in_base=True), Place(Offset.whole(9))]
)
def test_place_has_one_form_as_text(place: Place) -> None:
    text = json.dumps(place.to_dict())
    assert Place.from_dict(json.loads(text)) == place
    assert list(place.to_dict())[:3] == ["v", "lsn", "ord"]


def test_times_choose_whole_transactions(log: MadeLog) -> None:
    table = Table()
    ends = [log.commit(table, table.insert(n, "", 0), ts_us=n * SECOND_US) for n in range(3)]
    # Commit times count from the year 2000 in frames.
    times = [f"2000-01-01 00:00:0{n}+00" for n in range(3)]
    options = _options(log, startingTimestamp=times[1], endingTimestamp=times[1])
    reader = options.reader()
    assert ends[0] <= options.start(reader).offset < ends[1]
    assert options.end(reader) == ends[1]


def test_time_without_a_commit_is_an_empty_read(log: MadeLog) -> None:
    table = Table()
    for number in (1, 5):
        log.commit(table, table.insert(number, "", 0), ts_us=number * SECOND_US)
    first, last = "2000-01-01 00:00:02+00", "2000-01-01 00:00:04+00"
    quiet = _options(log, startingTimestamp=first, endingTimestamp=last)
    (task,) = TableReader(quiet, StructType()).partitions()
    assert isinstance(task, LogPartition) and not task.pieces
    turned = _options(log, startingTimestamp=last, endingTimestamp=first)
    with pytest.raises(ConfigError, match="the read starts after"):
        TableReader(turned, StructType()).partitions()


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (StoreError("the disk is gone"), StoreError),
        (LogError("a hole", retry=False), LogError),
        (ObjectMissing("no object"), ObjectMissing),
        (LogError("busy", retry=True), StoreError),
        (OffsetOutOfRange("dropped"), OffsetOutOfRange),
        (SchemaError("new shape", hint="start again"), SchemaError),
    ],
)
def test_class_alone_tells_whether_to_try_again(
    raised: TailraceError, told: type[TailraceError]
) -> None:
    with pytest.raises(TailraceError) as caught, one_line_errors():
        raise raised
    assert caught.type is told
    assert told.retry == raised.retry
    hint = f" ({raised.hint})" if raised.hint else ""
    assert str(caught.value) == f"{ERROR_PREFIX}{raised}{hint}"


def test_error_is_marked_once() -> None:
    with pytest.raises(ConfigError) as caught, one_line_errors(), one_line_errors():
        raise ConfigError("wrong", hint="right")
    assert str(caught.value) == "tailrace: wrong (right)"
