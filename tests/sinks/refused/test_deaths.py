"""Rows that wait while a process dies, is replaced, or replays: none is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.errors import LogFenced, SinkError, StoreError
from tailrace.log.epochs import take_epoch
from tailrace.postgres.session import Connection
from tailrace.sinks import Batch
from tailrace.sinks.columns import Mode
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.postgres import PostgresSink, redriving
from tailrace.sinks.postgres import sink as postgres_sink
from tailrace.storage import FileStore
from tests.nursery import die
from tests.server import Server
from tests.sinks.change_harness import PostgresChanges, place
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused import killed_parking
from tests.sinks.refused.killed_parking import BAD, CHECK, NO_CHECK, STREAM
from tests.sinks.refused.refusing import (
    LetterStore,
    ask_of,
    checked,
    execute,
    letters,
    numbers,
)
from tests.sinks.source import batch_of, relation


def test_f082_zombie_commits_nothing_behind_letters_that_its_successor_does_not_know(
    copy: PostgresHarness, store: LetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checked(copy)
    take_epoch(store, STREAM, node="a")
    zombie = copy.open()
    source.update(2, n=BAD)
    source.update(1, n=10)
    batch = batch_of(2, source.take())

    def overtake(name: str) -> None:
        if name == "apart.after_letters":
            take_epoch(store, STREAM, node="b")

    with monkeypatch.context() as patch:
        patch.setattr(postgres_sink, "failpoint", overtake)
        with pytest.raises(LogFenced):
            zombie.write(batch)
    assert numbers(copy)[1] == 1
    successor = copy.open()
    successor.write(batch)
    assert numbers(copy) == {1: 10, 2: 2, 3: 3} and len(letters(store)) == 1
    with pytest.raises(LogFenced):
        ask_of(zombie, store)
    assert len(letters(store)) == 1


def test_f082_zombie_redrives_nothing_once_somebody_else_delivers(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    take_epoch(store, STREAM, node="a")
    zombie = copy.open()
    source.update(2, n=BAD)
    zombie.write(batch_of(2, source.take()))
    execute(copy, NO_CHECK)

    def overtake(conn: Connection) -> None:
        # It has read the letters, and has no lock yet.
        patch.undo()
        take_epoch(store, STREAM, node="b")
        successor = copy.open()
        successor.serve_requests()
        source.update(2, n=20)
        successor.write(batch_of(3, source.take()))

    patch = pytest.MonkeyPatch()
    patch.setattr(redriving, "set_up", overtake)
    with pytest.raises(LogFenced):
        ask_of(zombie, store)
    assert numbers(copy)[2] == 20 and not letters(store)


def test_f105_replay_leaves_out_what_waits(copy: PostgresHarness, store: LetterStore) -> None:
    source = checked(copy)
    source.update(2, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.update(1, n=10)
    source.update(2, n=20)
    batch = replace(batch_of(3, source.take()), replay="r")
    with closing(PostgresSink(copy.options, store=store, stream="lake.replay")) as sink:
        sink.leave_out_undelivered()
        sink.write(batch)
        assert numbers(copy) == {1: 10, 2: 2, 3: 3} and len(letters(store)) == 1
        source.update(3, n=BAD)
        with pytest.raises(SinkError, match="23514"):
            sink.write(replace(batch_of(4, source.take()), replay="r"))
    assert len(letters(store)) == 1


def test_f105_replay_leaves_out_a_row_that_waits_since_before_a_column_was_added(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy)
    source.insert(id=4, n=BAD)
    copy.sink.write(batch_of(2, source.take()))
    source.add_column("later")
    source.update(1, n=10)
    copy.sink.write(batch_of(3, source.take()))
    # A replay takes what came later from the target, which has no row 4.
    source.update(4, n=BAD, unchanged=["later"])
    source.update(2, n=20, unchanged=["later"])
    batch = replace(batch_of(4, source.take()), replay="r")
    with closing(PostgresSink(copy.options, store=store, stream="lake.replay")) as sink:
        sink.leave_out_undelivered()
        sink.write(batch)
    assert numbers(copy) == {1: 10, 2: 20, 3: 3} and len(letters(store)) == 1


class Died(Exception):
    """Stands for a process that ends."""


def fail_before_commit(copy: PostgresHarness, batch: Batch) -> None:
    """Write a batch until its letters are put and nothing is committed."""

    def fail(name: str) -> None:
        if name == "apart.before_commit":
            raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_sink, "failpoint", fail)
        with pytest.raises(Died):
            copy.sink.write(batch)


def docs(copy: PostgresHarness) -> dict[int, str]:
    """By key, the large values that the target has."""
    with copy.database.connect() as conn:
        return dict(conn.execute("SELECT id, doc FROM orders").fetchall())


def test_f051_batch_that_comes_again_takes_no_value_from_its_own_letter_of_a_key_used_anew(
    copy: PostgresHarness,
) -> None:
    source = checked(copy)
    source.update(1, id=9, unchanged=["doc"])
    source.insert(id=1, doc="another's", n=BAD)
    batch = batch_of(2, source.take())
    fail_before_commit(copy, batch)
    copy.sink.write(batch)
    assert docs(copy)[9] == "large 1"


def test_f051_batch_that_comes_again_passes_its_own_letter_of_a_refused_delete(
    copy: PostgresHarness,
) -> None:
    source = checked(copy, "CREATE TABLE parcels (order_id int8 REFERENCES orders)")
    execute(copy, "INSERT INTO parcels VALUES (1)")
    source.update(1, id=9, unchanged=["doc"])
    batch = batch_of(2, source.take())
    fail_before_commit(copy, batch)
    copy.sink.write(batch)
    assert docs(copy)[9] == "large 1"


def test_f081_letters_that_a_store_deletes_by_halves_never_bring_an_older_state_back(
    copy: PostgresHarness, store: LetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checked(copy)
    for number in (2, 3):
        source.update(2, n=BAD + number)
        copy.sink.write(batch_of(number, source.take()))
    execute(copy, NO_CHECK)
    delete = store.delete

    def delete_last(keys: Iterable[str]) -> None:
        delete(list(keys)[-1:])
        raise StoreError("connection lost")

    assert isinstance(copy.sink, PostgresSink)
    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", delete_last)
        with pytest.raises(StoreError):
            ask_of(copy.sink, store)
    copy.sink.serve_requests()
    assert numbers(copy)[2] == BAD + 3 and not letters(store)


STEPS = [
    *("letter.before_put", "letter.after_put:2", "letter.after_put:3", "letter.before_delete"),
    *("apart.after_letters", "apart.before_commit", "apart.after_commit", "apart.before_commit:2"),
    *("redrive.before_commit", "redrive.after_commit", "letter.after_delete"),
    *("redrive.before_audit", "redrive.after_audit"),
]


@pytest.mark.parametrize("mode", ["upsert", "append"])
@pytest.mark.parametrize("step", STEPS)
def test_f081_process_killed_while_rows_wait_loses_and_doubles_nothing(
    postgres: Server, tmp_path: Path, step: str, mode: str
) -> None:
    store = FileStore(tmp_path / "log")
    with postgres.database() as fresh, closing(PostgresChanges(fresh, Mode(mode))) as target:
        target.sink.prepare(relation())
        execute(target, CHECK)
        told = (store.url, fresh.dsn, mode)
        die(killed_parking.main, *told, failpoint=step, output=tmp_path / "output.txt")
        source = killed_parking.redrive_all(*told)
        assert not DeadLetters(store, STREAM).names()
        if mode == "upsert":
            assert target.rows(source.relation) == source.expected()
        else:
            found = target.changes(source.relation)
            assert len(found) == len({place(each) for each in found}) == 9
