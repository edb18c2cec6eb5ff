"""Changes that a table of changes refuses: each is added once, in the order of its row."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.postgres import PostgresSink
from tests.sinks.change_harness import PostgresChanges, place
from tests.sinks.refused.killed_parking import BAD, NO_CHECK, STREAM
from tests.sinks.refused.refusing import (
    LetterStore,
    ask,
    checked,
    execute,
    letters,
    shown,
)
from tests.sinks.source import batch_of, load_of


def test_changes_of_a_refused_row_wait_in_order_and_are_added_once(
    changes: PostgresChanges, store: LetterStore
) -> None:
    source = checked(changes)
    source.update(2, n=20)
    source.update(2, n=BAD)
    source.update(2, n=22)
    source.update(1, n=10)
    source.truncate()
    changes.sink.write(batch_of(2, source.take()))
    assert [(key, bad) for key, _, bad in shown(store)] == [("2", True), ("2", False)]
    assert len(changes.changes(source.relation)) == 3 + 3
    audit = ask(changes, store)
    assert not audit.done and len(audit.failed) == 2
    execute(changes, NO_CHECK)
    kept = DeadLetters(store, STREAM)
    saved = [(name.key, store.get(name.key)) for name in kept.waiting()]
    for _ in range(2):
        assert len(ask(changes, store).done) == 2 and not letters(store)
        found = changes.changes(source.relation)
        assert [each["n"] for each in found if each["id"] == 2] == [2, 20, BAD, 22]
        assert len(found) == len({place(each) for each in found}) == 3 + 5
        # As if the process had died before it deleted them.
        for name, data in saved:
            store.put_new(name, data)


def test_base_of_changes_puts_its_refused_rows_aside(
    changes: PostgresChanges, store: LetterStore
) -> None:
    source = checked(changes)
    for key in range(10, 16):
        source.insert(id=key, n=BAD if key == 13 else key)
    source.take()
    changes.sink.load(load_of(2, source), source.base(rows_per_part=4))
    (letter,) = letters(store)
    assert letter.event_id.endswith("-6-r")
    assert len(changes.changes(source.relation)) == 3 + 1 + 8
    execute(changes, NO_CHECK)
    ask(changes, store)
    assert len(changes.changes(source.relation)) == 3 + 1 + 9


def test_f105_replay_of_changes_leaves_out_what_waits_from_its_first_letter_on(
    changes: PostgresChanges, store: LetterStore
) -> None:
    source = checked(changes)
    source.update(2, n=20)
    source.update(2, n=BAD)
    source.update(1, n=10)
    batch = batch_of(2, source.take())
    changes.sink.write(batch)
    again = replace(batch, stream="lake.replay", replay="r")
    with closing(PostgresSink(changes.options, store=store, stream="lake.replay")) as sink:
        sink.leave_out_undelivered()
        sink.write(again)
    found = changes.changes(source.relation)
    assert sorted(each["n"] for each in found) == [1, 2, 3, 10, 10, 20, 20]
