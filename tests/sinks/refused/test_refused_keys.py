"""Keys of refused rows: equal ones wait in one line however spelt, others by themselves."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from tailrace.errors import SinkError
from tailrace.model import PgType, Relation
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.killed_parking import BAD, CHECK, NO_CHECK
from tests.sinks.refused.refusing import LetterStore, ask, execute, letters, numbers, shown
from tests.sinks.source import Source, batch_of, relation

NUMERIC_38 = (38 << 16) + 4
INTERVAL = 1186
CHAR_3, CHAR_5 = 3 + 4, 5 + 4


def keyed(type_oid: int, typmod: int = -1) -> Relation:
    """A table whose key has this type."""
    shape = relation(columns={"id": type_oid, "n": PgType.INT4})
    key, number = shape.columns
    return replace(shape, columns=(replace(key, typmod=typmod), number))


def refusing(copy: PostgresHarness, shape: Relation) -> Source:
    """It has no rows yet, and refuses what is too large."""
    source = Source(shape)
    copy.sink.prepare(shape)
    execute(copy, CHECK)
    return source


def test_key_that_is_spelt_anew_waits_as_well(copy: PostgresHarness, store: LetterStore) -> None:
    source = refusing(copy, keyed(PgType.NUMERIC))
    source.insert(id="1.0", n=BAD)
    copy.sink.write(batch_of(1, source.take()))
    source.update("1.0", id="1.00", n=2)
    copy.sink.write(batch_of(2, source.take()))
    assert not numbers(copy)
    ask(copy, store)
    with copy.database.connect() as conn:
        assert conn.execute("SELECT id::text, n FROM orders").fetchall() == [("1.00", 2)]


def test_key_that_is_spelt_anew_waits_for_the_old_one_that_is_refused_to_go(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = refusing(copy, keyed(PgType.NUMERIC))
    source.insert(id="1.0", n=1)
    source.insert(id="2.0", n=1)
    copy.sink.write(batch_of(1, source.take()))
    execute(
        copy,
        "CREATE TABLE parcels (order_id numeric REFERENCES orders)",
        "INSERT INTO parcels VALUES (1)",
    )
    source.update("1.0", id="1.00", n=2)
    source.update("2.0", n=2)
    copy.sink.write(batch_of(2, source.take()))
    assert [(op, error) for _, op, error in shown(store)] == [("delete", True), ("upsert", False)]
    assert numbers(copy) == {1: 1, 2: 2}


def test_f064_keys_that_differ_in_their_last_digit_wait_by_themselves(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = refusing(copy, keyed(PgType.NUMERIC, NUMERIC_38))
    for digit in (1, 2):
        source.insert(id=Decimal(f"{'1234567890' * 3}1234567{digit}"), n=BAD)
    copy.sink.write(batch_of(1, source.take()))
    execute(copy, NO_CHECK)
    ask(copy, store)
    assert numbers(copy) == {key: BAD for (key,) in source.rows} and not letters(store)


def test_key_that_gets_more_blanks_waits_behind_its_letter(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = refusing(copy, keyed(PgType.BPCHAR, CHAR_3))
    source.insert(id="a  ", n=BAD)
    copy.sink.write(batch_of(1, source.take()))
    source.retype_column("id", PgType.BPCHAR, CHAR_5)
    source.rows = {("a    ",): {"id": "a    ", "n": BAD}}
    source.update("a    ", n=30)
    copy.sink.write(batch_of(2, source.take()))
    assert not numbers(copy) and len(letters(store)) == 2
    execute(copy, NO_CHECK)
    ask(copy, store)
    assert list(numbers(copy).values()) == [30]


def test_f058_key_whose_columns_are_told_in_another_order_waits_behind_its_letter(
    copy: PostgresHarness, store: LetterStore
) -> None:
    columns = {"a": PgType.INT8, "id": PgType.INT8, "n": PgType.INT4}
    source = refusing(copy, relation(key=("id", "a"), columns=columns))
    source.insert(a=1, id=2, n=BAD)
    copy.sink.write(batch_of(1, source.take()))
    source.add_column("later")
    source.update(2, 1, n=3)
    # A frame that the catalog has moved on from stands alone: it says which columns are the key's.
    changes = source.take()
    alone = replace(changes, relation=replace(changes.relation, key=("a", "id")))
    copy.sink.write(batch_of(2, alone))
    assert not numbers(copy) and len(letters(store)) == 2
    execute(copy, NO_CHECK)
    ask(copy, store)
    assert numbers(copy) == {2: 3} and not letters(store)


@pytest.mark.parametrize(
    ("type_oid", "key"),
    [(INTERVAL, "1 day"), (PgType.FLOAT4, 0.1)],
    ids=["a day is 24 hours", "has more digits when it is widened"],
)
def test_key_whose_texts_do_not_tell_it_apart_stops_the_stream(
    copy: PostgresHarness, store: LetterStore, type_oid: int, key: object
) -> None:
    source = refusing(copy, keyed(type_oid))
    source.insert(id=key, n=BAD)
    with pytest.raises(SinkError, match="23514") as caught:
        copy.sink.write(batch_of(1, source.take()))
    assert not caught.value.retry and not letters(store)
