"""Messages: what they say about a change, in both envelopes, for values of every kind."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tailrace.decode import TableChanges
from tailrace.errors import SchemaError
from tailrace.model import META_COLUMNS, PgType, ReplicaIdentity
from tailrace.sinks.letters.message import Message
from tailrace.sinks.queue.envelope import Renderer
from tailrace.sinks.queue.json_columns import Style
from tests.sinks.source import NAN, Source, load_of, relation

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def messages(changes: TableChanges, style: Style = Style.DEBEZIUM) -> list[Message]:
    return Renderer("paid", style, "shop").changes([changes], 7)


def payloads(changes: TableChanges, style: Style = Style.DEBEZIUM) -> list[dict[str, Any]]:
    return [json.loads(message.payload) for message in messages(changes, style)]


def test_debezium_envelope_has_the_fields_that_its_consumers_read() -> None:
    source = Source()
    source.insert(id=1, part="a", amount=Decimal("1.50"), n=1)
    source.update(1, n=2)
    source.delete(1)
    source.truncate()
    created, updated, deleted, truncated = payloads(source.take())
    row = {"id": 1, "part": "a", "doc": None, "amount": "1.50", "n": 1}
    assert (created["op"], created["before"], created["after"]) == ("c", None, row)
    assert (updated["op"], updated["before"], updated["after"]) == ("u", None, {**row, "n": 2})
    assert (deleted["op"], deleted["after"]) == ("d", None)
    assert deleted["before"] == {"id": 1, "part": None, "doc": None, "amount": None, "n": None}
    assert (truncated["op"], truncated["before"], truncated["after"]) == ("t", None, None)
    assert created["ts_ms"] == created["source"]["ts_ms"] == 0x1008 * 1000
    assert created["source"] == {
        **created["source"],
        "connector": "postgresql",
        "name": "paid",
        "snapshot": "false",
        "db": "shop",
        "schema": "public",
        "table": "orders",
        "lsn": 0x1008,
        "txId": 1,
        "xmin": None,
        "event_id": "0000000000001008-0",
        "batch": 7,
    }


def test_plain_envelope_says_the_same_in_the_words_of_the_log() -> None:
    source = Source()
    source.insert(id=1, n=1, doc="large")
    source.update(1, n=2, unchanged=["doc"])
    inserted, updated = payloads(source.take(), Style.PLAIN)
    assert inserted == {
        "event_id": "0000000000001008-0",
        "batch": 7,
        "stream": "paid",
        "op": "insert",
        "table": "public.orders",
        "key": {"id": 1},
        "row": {"id": 1, "part": None, "doc": "large", "amount": None, "n": 1},
        "before": None,
        "unchanged": [],
        "commit_lsn": "0/1008",
        "ordinal": 0,
        "commit_ts": "1970-01-01T01:08:24.000000Z",
        "xid": 1,
    }
    assert updated["unchanged"] == ["doc"] and "doc" not in updated["row"]


def test_f049_unchanged_large_value_is_said_to_be_unavailable_unless_the_old_row_has_it() -> None:
    source = Source()
    source.insert(id=1, doc="large")
    source.update(1, n=1, unchanged=["doc"])
    assert payloads(source.take())[1]["after"]["doc"] == "__debezium_unavailable_value"
    whole = Source(relation(identity=ReplicaIdentity.FULL))
    whole.insert(id=1, doc="large", amount=NAN)
    whole.update(1, n=1, unchanged=["doc"])
    after = payloads(whole.take())[1]["after"]
    assert after["doc"] == "large"


def test_change_of_a_key_is_a_delete_of_the_old_and_an_insert_of_the_new_one() -> None:
    source = Source()
    source.insert(id=1, n=1)
    source.update(1, id=2)
    _, old, new = found = messages(source.take())
    assert [json.loads(each.payload)["op"] for each in found] == ["c", "d", "c"]
    assert (old.key, new.key) == ('{"id":1}', '{"id":2}')
    assert old.event_id == f"{new.event_id}-old" and old.place < new.place
    assert found[0].lane == old.lane != new.lane


COLUMNS = {
    "id": PgType.INT8,
    "b": PgType.BOOL,
    "f4": PgType.FLOAT4,
    "f8": PgType.FLOAT8,
    "d": PgType.DATE,
    "ts": PgType.TIMESTAMP,
    "tz": PgType.TIMESTAMPTZ,
    "raw": PgType.BYTEA,
    "num": PgType.NUMERIC,
    "txt": PgType.TEXT,
}

VALUES: dict[str, tuple[object, object, object]] = {
    "b": (True, True, True),
    "f4": (0.5, 0.5, 0.5),
    "f8": (float("-inf"), "-Infinity", "-Infinity"),
    "d": (date(1970, 1, 11), 10, "1970-01-11"),
    "ts": (datetime(1970, 1, 1, 0, 0, 1), 1_000_000, "1970-01-01T00:00:01.000000"),
    "tz": (EPOCH, "1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000000Z"),
    "raw": (b"hi", "aGk=", "\\x6869"),
    "num": (Decimal("0.00"), "0.00", "0.00"),
    "txt": ('"\\\n\u2028\x01é', '"\\\n\u2028\x01é', '"\\\n\u2028\x01é'),
}


@pytest.mark.parametrize("style", list(Style))
def test_value_of_each_type_is_written_by_its_rule(style: Style) -> None:
    source = Source(relation(columns=COLUMNS))
    source.insert(id=1, **{name: value for name, (value, *_) in VALUES.items()})
    source.insert(id=2, num=NAN, f8=1e300, txt="plain")
    first, second = payloads(source.take(), style)
    row = "after" if style is Style.DEBEZIUM else "row"
    expected = {name: each[1 if style is Style.DEBEZIUM else 2] for name, each in VALUES.items()}
    assert first[row] == {"id": 1, **expected}
    assert (second[row]["num"], second[row]["f8"], second[row]["txt"]) == ("NaN", 1e300, "plain")


def test_same_change_is_the_same_message_and_keys_that_are_equal_share_a_lane() -> None:
    source = Source(relation(key=("f",), columns={"f": PgType.FLOAT8, "n": PgType.INT4}))
    source.insert(f=0.0, n=1)
    source.delete(0.0)
    source.insert(f=-0.0, n=2)
    changes = source.take()
    first, _, last = messages(changes)
    assert first.lane == last.lane
    assert messages(changes) == messages(changes)


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(PgType.BPCHAR, "ab  ", "ab    "), (PgType.NUMERIC, "1.50", "1.500")],
)
def test_f058_row_keeps_its_lane_and_the_key_it_is_sent_with_when_its_key_gets_longer(
    style: Style, kind: int, before: str, after: str
) -> None:
    lanes, keys = [], []
    for value in (before, after, "7"):
        made = relation(key=("id", "n"), columns={"id": kind, "n": PgType.INT4})
        of_any_size = tuple(replace(column, typmod=-1) for column in made.columns)
        source = Source(replace(made, columns=of_any_size))
        source.insert(id=value, n=1)
        (message,) = messages(source.take(), style)
        assert value.encode() in message.payload
        lanes.append(message.lane)
        keys.append(message.key)
    assert lanes[0] == lanes[1] != lanes[2]
    assert keys[0] == keys[1] != keys[2] == '{"id":"7","n":1}'


@pytest.mark.parametrize(
    ("value", "sent"),
    [("100", "100"), ("0.00", "0"), ("NaN", "NaN"), ("1e-7", "0.0000001"), ("12.30", "12.3")],
)
def test_f058_key_of_a_numeric_is_sent_with_every_digit_and_no_more(value: str, sent: str) -> None:
    made = relation(key=("id",), columns={"id": PgType.NUMERIC, "n": PgType.INT4})
    source = Source(replace(made, columns=tuple(replace(c, typmod=-1) for c in made.columns)))
    source.insert(id=value, n=1)
    (message,) = messages(source.take())
    assert message.key == f'{{"id":"{sent}"}}'


@pytest.mark.parametrize("style", list(Style))
def test_f058_row_keeps_its_lane_when_a_frame_tells_the_key_in_the_order_of_the_columns(
    style: Style,
) -> None:
    columns = {"a": PgType.INT8, "b": PgType.INT8, "n": PgType.INT4}
    source = Source(relation(key=("b", "a"), columns=columns))
    source.insert(a=1, b=2, n=3)
    changes = source.take()
    # As a frame is that the catalog has moved on from.
    alone = replace(changes, relation=replace(changes.relation, key=("a", "b")))
    (one,), (other,) = messages(changes, style), messages(alone, style)
    assert (one.key, one.lane, one.payload) == (other.key, other.lane, other.payload)


def test_rows_without_a_key_flow_alone() -> None:
    source = Source(relation(key=()))
    source.rows = {}
    for number in range(2):
        source.rows.clear()
        source.insert(id=number)
    first, second = messages(source.take())
    assert first.lane != second.lane and first.key == ""
    assert first.partition_key == first.event_id


def test_rows_of_a_base_are_read_behind_a_truncate() -> None:
    source = Source()
    source.insert(id=1)
    load = load_of(3, source)
    renderer = Renderer("paid", Style.DEBEZIUM)
    begin, row = renderer.base_begin(load), renderer.base(load, source.base()[0])[0]
    assert begin.is_barrier and begin.place < row.place
    value = json.loads(row.payload)
    assert (value["op"], value["source"]["snapshot"]) == ("r", "true")
    assert row.event_id == "0000000000001008-16384-0-r", "told from a change at the same place"


def test_rows_of_two_bases_at_one_position_have_event_ids_of_their_own() -> None:
    source = Source()
    source.insert(id=1)
    load, renderer = load_of(3, source), Renderer("paid", Style.DEBEZIUM)
    other = replace(load, relation=replace(load.relation, oid=16385, name="items"))
    found = [
        message.event_id
        for each in (load, other)
        for message in (renderer.base_begin(each), *renderer.base(each, source.base()[0]))
    ]
    assert len(set(found)) == 4, "whoever drops what came before would lose rows"


def test_key_must_be_among_the_columns() -> None:
    source = Source()
    source.insert(id=1)
    narrow = relation(columns={"n": PgType.INT4})
    rows = source.take().rows.select(["n", *META_COLUMNS])
    with pytest.raises(SchemaError, match=r"key of public\.orders is not among"):
        messages(TableChanges(narrow, rows))
