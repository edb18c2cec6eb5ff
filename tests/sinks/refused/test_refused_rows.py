"""Rows that a target database refuses: one of them never blocks the others, and none is lost."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import replace

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.errors import SinkError, StoreError, TargetLost
from tailrace.model import PgType
from tailrace.sinks.letters import redrive
from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.postgres import PostgresSink
from tests.server import Database, Server
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.killed_parking import BAD, NO_CHECK, STREAM
from tests.sinks.refused.refusing import (
    LetterStore,
    ask,
    checked,
    execute,
    letters,
    numbers,
    shown,
)
from tests.sinks.source import Source, batch_of, load_of, relation


def test_f099_refused_row_parks_its_key_and_all_others_flow(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    source.update(1, n=10)
    source.insert(id=4, n=4)
    source.insert(id=5, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    assert numbers(copy) == {1: 10, 2: 2, 3: 3, 4: 4}
    assert shown(store) == [("2", "upsert", True), ("5", "upsert", True)]
    assert "23514" in letters(store)[0].error
    # Later changes of these rows queue behind, also at the next one who opens the sink.
    reopened = copy.open()
    source.update(2, n=20)
    source.delete(5)
    source.delete(3)
    reopened.write(batch_of(3, source.take()))
    assert numbers(copy) == {1: 10, 2: 2, 4: 4}
    assert shown(store)[2:] == [("2", "upsert", False), ("5", "delete", False)]
    assert copy.sink.committed(STREAM, [source.relation]) == {"public.orders": 3}


def test_redrive_brings_the_newest_state_and_opens_the_key(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD, unchanged=["doc"])
    source.insert(id=5, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.update(2, n=20, unchanged=["doc"])
    source.delete(1)
    copy.sink.write(batch_of(3, source.take()))
    audit = ask(copy, store)
    assert len(audit.done) == 2 and len(audit.failed) == 1
    assert shown(store) == [("5", "upsert", True)] and numbers(copy) == {2: 20, 3: 3}
    source.update(2, n=21, unchanged=["doc"])
    copy.sink.write(batch_of(4, source.take()))
    assert numbers(copy) == {2: 21, 3: 3}
    execute(copy, NO_CHECK)
    assert len(ask(copy, store).done) == 1 and not letters(store)
    assert copy.rows(source.relation) == source.expected()


def test_refused_again_it_stays_with_all_that_is_behind_it(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    for number, value in ((2, BAD), (3, BAD + 1)):
        source.update(2, n=value)
        copy.sink.write(batch_of(number, source.take()))
    audit = ask(copy, store, "redrive", letters(store)[0].event_id)
    assert not audit.done and len(audit.failed) == 2 and len(letters(store)) == 2
    assert numbers(copy)[2] == 2


def test_redrive_in_pieces_sends_only_the_newest_state_of_a_key(
    copy: PostgresHarness, store: LetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "_LETTERS_AT_ONCE", 2)
    source = checked(copy)
    for number in (2, 3, 4):
        source.update(2, n=BAD + number)
        copy.sink.write(batch_of(number, source.take()))
    source.update(2, n=20)
    copy.sink.write(batch_of(5, source.take()))
    assert len(ask(copy, store).done) == 4 and not letters(store)
    assert numbers(copy)[2] == 20


def test_f098_redrive_to_a_table_of_somebody_else_says_so_and_keeps_the_letters(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    execute(copy, "DROP TABLE orders", "CREATE TABLE orders (id int8)")
    audit = ask(copy, store)
    assert audit.error and not audit.done and len(letters(store)) == 1


def test_discarded_row_is_lost_and_its_next_change_flows(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    assert len(ask(copy, store, "discard").done) == 1
    assert numbers(copy)[2] == 2
    source.update(2, n=20)
    copy.sink.write(batch_of(3, source.take()))
    assert copy.rows(source.relation) == source.expected() and not letters(store)


def test_f049_f051_value_that_was_not_sent_is_taken_from_the_row_that_waits(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(1, n=BAD, doc="larger")
    copy.sink.write(batch_of(2, source.take()))
    # It moves while it waits, and so does one that is refused only under its new key.
    source.update(1, id=7, n=7, unchanged=["doc"])
    source.update(2, id=8, n=BAD, unchanged=["doc"])
    source.update(3, n=30, unchanged=["doc"])
    copy.sink.write(batch_of(3, source.take()))
    assert numbers(copy) == {1: 1, 3: 30, 7: 7}
    assert shown(store) == [
        *(("1", "upsert", True), ("1", "delete", False)),
        ("8", "upsert", True),
    ]
    source.update(8, n=80, unchanged=["doc"])
    copy.sink.write(batch_of(4, source.take()))
    ask(copy, store)
    assert copy.rows(source.relation) == source.expected() and not letters(store)


def test_f049_row_that_waits_since_before_a_column_needs_only_the_values_that_its_change_lacks(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.add_column("notes")
    source.update(3, notes="large")
    copy.sink.write(batch_of(3, source.take()))
    # One batch: the letter of row 2 has no notes, and they are not asked for.
    source.update(2, n=20, unchanged=["doc"])
    source.update(3, n=30, unchanged=["notes"])
    copy.sink.write(batch_of(4, source.take()))
    ask(copy, store)
    assert copy.rows(source.relation) == source.expected() and not letters(store)


def test_f054_truncate_settles_what_waits_of_its_table(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.truncate()
    source.insert(id=2, n=22)
    source.insert(id=6, n=BAD)
    copy.sink.write(batch_of(3, source.take()))
    assert numbers(copy) == {2: 22} and shown(store) == [("6", "upsert", True)]
    audit = ask(copy, store)
    assert not audit.done and numbers(copy) == {2: 22}
    source.update(2, n=23)
    copy.sink.write(batch_of(4, source.take()))
    assert numbers(copy) == {2: 23}


def test_load_outdoes_what_waits_and_puts_its_own_refused_rows_aside(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.update(2, n=20)
    for key in range(10, 20):
        source.insert(id=key, n=BAD if key == 13 else key)
    source.take()
    copy.sink.load(load_of(3, source), source.base(rows_per_part=4))
    assert shown(store) == [("13", "upsert", True)]
    assert numbers(copy).keys() == {1, 2, 3, *range(10, 20)} - {13} and numbers(copy)[2] == 20
    execute(copy, NO_CHECK)
    ask(copy, store)
    assert copy.rows(source.relation) == source.expected() and not letters(store)


def test_load_puts_a_row_aside_that_a_deferred_constraint_refuses(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(
        copy,
        "CREATE TABLE sizes (n int4 PRIMARY KEY)",
        "INSERT INTO sizes SELECT generate_series(1, 9)",
        "ALTER TABLE orders ADD FOREIGN KEY (n) REFERENCES sizes DEFERRABLE INITIALLY DEFERRED",
    )
    source.update(2, n=BAD)
    source.take()
    copy.sink.load(load_of(2, source), source.base())
    assert numbers(copy) == {1: 1, 3: 3} and shown(store) == [("2", "upsert", True)]


@pytest.mark.parametrize("key", [6, 9], ids=["refused", "behind"])
def test_f099_store_that_takes_no_letter_stops_the_stream_before_the_row(
    copy: PostgresHarness, store: LetterStore, key: int
) -> None:
    source = checked(copy)
    source.insert(id=9, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    if key == 9:
        source.update(9, n=9)
    else:
        source.insert(id=6, n=BAD)
    source.update(1, n=10)
    batch = batch_of(3, source.take())
    store.is_full = True
    with pytest.raises(StoreError):
        copy.sink.write(batch)
    assert numbers(copy)[1] == 1
    assert copy.sink.committed(STREAM, [source.relation]) == {"public.orders": 2}
    store.is_full = False
    copy.sink.write(batch)
    assert numbers(copy)[1] == 10 and [each for each, *_ in shown(store)] == ["9", str(key)]


def test_f099_letter_whose_put_has_failed_is_never_redriven_over_a_newer_state(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    batch = batch_of(2, source.take())
    store.is_mute = True
    with pytest.raises(StoreError):
        copy.sink.write(batch)
    store.is_mute = False
    # Now the target would take the row that has a letter.
    execute(copy, NO_CHECK)
    copy.sink.write(batch)
    source.update(2, n=20)
    copy.sink.write(batch_of(3, source.take()))
    ask(copy, store)
    assert copy.rows(source.relation) == source.expected() and not letters(store)


def test_f099_full_dead_letters_hold_the_stream_until_there_is_room(
    database: Database, store: LetterStore
) -> None:
    with closing(PostgresHarness(database, store=store, limits=LetterLimits(2))) as copy:
        source = checked(copy)
        for key in (4, 5, 6):
            source.insert(id=key, n=BAD)
        source.update(1, n=10)
        batch = batch_of(2, source.take())
        for _ in range(2):
            with pytest.raises(SinkError, match="are full: 2 letters") as caught:
                copy.sink.write(batch)
            assert caught.value.retry and "dlq ls lake" in caught.value.hint
        assert numbers(copy) == {1: 1, 2: 2, 3: 3}
        # What waits of a batch that is under way comes with the batch.
        execute(copy, NO_CHECK)
        audit = ask(copy, store)
        assert not audit.done and len(audit.failed) == 2 and len(letters(store)) == 2
        copy.sink.write(batch)
        assert numbers(copy) == {1: 10, 2: 2, 3: 3, 6: BAD}
        ask(copy, store)
        assert copy.rows(source.relation) == source.expected()


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("ALTER TABLE orders ALTER part SET NOT NULL", "23502"),
        ("ALTER TABLE orders ADD UNIQUE (part)", "23505"),
        ("ALTER TABLE orders ADD UNIQUE (part) DEFERRABLE INITIALLY DEFERRED", "23505"),
        (
            "CREATE TABLE parts (part text PRIMARY KEY);"
            "INSERT INTO parts SELECT 'part ' || n FROM generate_series(1, 9) n;"
            "ALTER TABLE orders ADD FOREIGN KEY (part) REFERENCES parts"
            " DEFERRABLE INITIALLY DEFERRED",
            "23503",
        ),
        (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN IF new.n = 2000 THEN RAISE 'too large'; END IF; RETURN new; END$$;"
            "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE"
            " FUNCTION refuse()",
            "P0001",
        ),
        ("CREATE INDEX ON orders ((100 / (n - 2000)))", "22012"),
        ("CREATE INDEX ON orders (doc)", "54000"),
    ],
)
def test_whatever_refuses_a_row_the_others_flow(
    copy: PostgresHarness, store: LetterStore, rule: str, state: str
) -> None:
    source = checked(copy, rule)
    source.update(1, n=10)
    part = {"23502": None, "23505": "part 3", "23503": "nobody's"}.get(state, "part 5")
    doc = "".join(chr(0x4E00 + at * 7 % 20000) for at in range(9000)) if state == "54000" else "d"
    source.insert(id=5, part=part, n=BAD, doc=doc)
    source.insert(id=6, part="part 6", n=6)
    copy.sink.write(batch_of(2, source.take()))
    assert numbers(copy) == {1: 10, 2: 2, 3: 3, 6: 6}
    (letter,) = letters(store)
    assert state in letter.error and json.loads(letter.key) == {"id": "5"}


def test_row_that_waits_for_a_row_of_the_same_batch_is_not_refused(
    copy: PostgresHarness, store: LetterStore
) -> None:
    parts = Source(relation("parts", key=("part",), columns={"part": PgType.TEXT}))
    source = Source()
    copy.sink.prepare(parts.relation)
    copy.sink.prepare(source.relation)
    execute(copy, "ALTER TABLE orders ADD FOREIGN KEY (part) REFERENCES parts")
    parts.insert(part="a")
    source.insert(id=1, part="a")
    copy.sink.write(batch_of(1, source.take(), parts.take()))
    assert not letters(store) and copy.rows(source.relation) == source.expected()


def test_encoding_that_lacks_a_letter_refuses_the_row(
    postgres: Server, copy: PostgresHarness, store: LetterStore
) -> None:
    name = sql.Identifier(f"{copy.database.name}_latin")
    with postgres.connect() as admin:
        make = "CREATE DATABASE {} ENCODING LATIN1 LOCALE 'C' TEMPLATE template0"
        admin.execute(sql.SQL(make).format(name))
    dsn = make_conninfo(copy.database.dsn, dbname=f"{copy.database.name}_latin")
    options = replace(copy.options, dsn=dsn)
    source = Source()
    source.insert(id=1, part="é")
    source.insert(id=2, part="€")
    try:
        with closing(PostgresSink(options, store=store, stream=STREAM)) as sink:
            sink.write(batch_of(1, source.take()))
    finally:
        with postgres.connect() as admin:
            admin.execute(sql.SQL("DROP DATABASE {}").format(name))
    (letter,) = letters(store)
    assert "22P05" in letter.error and json.loads(letter.payload)["row"]["part"] == "€"


def test_f098_right_that_is_missing_makes_no_letter(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.update(2, n=20)
    source.update(1, n=10)
    execute(
        copy,
        "CREATE FUNCTION deny() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE 'not you' USING ERRCODE = 'insufficient_privilege'; END$$",
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON orders EXECUTE FUNCTION deny()",
    )
    with pytest.raises(SinkError, match="42501") as caught:
        copy.sink.write(batch_of(3, source.take()))
    assert caught.value.retry and numbers(copy)[1] == 1
    # The one that is behind is kept already, and found when the batch comes again.
    assert shown(store) == [("2", "upsert", True), ("2", "upsert", False)]


def test_key_that_another_writer_has_put_makes_no_letter(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    execute(
        copy,
        "CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        " RAISE 'taken' USING ERRCODE = 'unique_violation', CONSTRAINT = 'orders_pkey'; END$$",
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON orders EXECUTE FUNCTION taken()",
    )
    source.insert(id=4, n=4)
    batch = batch_of(2, source.take())
    with pytest.raises(SinkError, match="23505") as caught:
        copy.sink.write(batch)
    assert caught.value.retry and not letters(store)
    execute(copy, "DROP TRIGGER t ON orders")
    copy.sink.write(batch)
    assert copy.rows(source.relation) == source.expected()


def test_values_of_a_refused_row_are_in_its_letter_and_not_in_the_program_log(
    copy: PostgresHarness, store: LetterStore, caplog: pytest.LogCaptureFixture
) -> None:
    source = checked(
        copy, "ALTER TABLE orders ADD CHECK (doc LIKE 'large%' OR doc::int4 > 0) NOT VALID"
    )
    source.update(1, doc="my secret")
    with caplog.at_level(logging.INFO):
        copy.sink.write(batch_of(2, source.take()))
    assert "row is a dead letter" in caplog.text and "22P02" in caplog.text
    assert "my secret" not in caplog.text and "my secret" in letters(store)[0].error


CASCADE = """
CREATE FUNCTION cascade() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN DELETE FROM public.orders WHERE id = 3; RETURN NULL; END$$;
CREATE TRIGGER cascade AFTER DELETE ON orders FOR EACH ROW WHEN (old.id = 1)
EXECUTE FUNCTION cascade()
"""
"""The target deletes a row by itself."""


@pytest.mark.parametrize("value", [20, BAD])
def test_value_that_goes_with_a_row_within_the_batch_is_never_null(
    copy: PostgresHarness, value: int
) -> None:
    source = checked(copy)
    execute(copy, CASCADE)
    source.delete(1)
    source.update(2, n=value)
    source.update(3, n=30, unchanged=["doc"])
    with pytest.raises(TargetLost, match="lacks a row"):
        copy.sink.write(batch_of(2, source.take()))
    assert numbers(copy) == {1: 1, 2: 2, 3: 3}
