"""Rows that are refused only until others of their batch are there, or gone, are no letters."""

from __future__ import annotations

import pytest
from psycopg import sql

from tailrace.model import PgType
from tailrace.sinks.postgres import apart
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.killed_parking import BAD
from tests.sinks.refused.refusing import LetterStore, checked, execute, letters
from tests.sinks.source import Source, batch_of, relation

BATCHES = 6
"""Tables are written side by side: in one of so many the wrong one is first."""


def referring(copy: PostgresHarness, *rules: str) -> list[Source]:
    """Three tables, each with a foreign key to the one before it; the first two refuse what is too
    large.
    """
    columns = {"id": PgType.INT8, "up": PgType.INT8}
    # As in a log, no two changes have one offset.
    tables = [
        Source(relation(name, columns=columns), lsn=lsn)
        for name, lsn in (("a", 0x1000), ("b", 0x100000), ("c", 0x200000))
    ]
    for each in tables:
        copy.sink.prepare(each.relation)
    execute(
        copy,
        "ALTER TABLE b ADD FOREIGN KEY (up) REFERENCES a",
        "ALTER TABLE c ADD FOREIGN KEY (up) REFERENCES b",
        *rules,
    )
    return tables


def ids(copy: PostgresHarness, table: str) -> list[int]:
    with copy.database.connect() as conn:
        query = sql.SQL("SELECT id FROM {} ORDER BY id").format(sql.Identifier(table))
        return [key for (key,) in conn.execute(query)]


@pytest.mark.parametrize("waits", [False, True], ids=["nothing waits", "a row waits"])
def test_rows_that_refer_over_several_tables_of_a_batch_are_not_refused(
    copy: PostgresHarness, store: LetterStore, *, waits: bool
) -> None:
    a, b, c = referring(copy, "ALTER TABLE a ADD CHECK (id < 1000)")
    a.insert(id=BAD if waits else 1)
    copy.sink.write(batch_of(1, a.take()))
    for key in range(2, 2 + BATCHES):
        a.insert(id=key)
        b.insert(id=key, up=key)
        c.insert(id=key, up=key)
        copy.sink.write(batch_of(key, c.take(), b.take(), a.take()))
    assert len(letters(store)) == int(waits)
    assert ids(copy, "c") == list(range(2, 2 + BATCHES))


def test_many_rows_that_refer_to_a_table_of_which_a_row_waits_are_not_refused(
    copy: PostgresHarness, store: LetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_LATER_MAX", 2)
    # The table that is referred to takes its time, and so comes second.
    slow = (
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END$$;"
        "CREATE TRIGGER t BEFORE INSERT ON a FOR EACH STATEMENT EXECUTE FUNCTION wait()"
    )
    a, b, _ = referring(copy, "ALTER TABLE a ADD CHECK (id < 1000)", slow)
    a.insert(id=BAD)
    copy.sink.write(batch_of(1, a.take()))
    for key in range(10):
        a.insert(id=key)
        b.insert(id=key, up=key)
    copy.sink.write(batch_of(2, b.take(), a.take()))
    assert len(letters(store)) == 1 and ids(copy, "b") == list(range(10))


def test_row_whose_parent_waits_is_a_letter_and_what_refers_to_others_is_not(
    copy: PostgresHarness, store: LetterStore
) -> None:
    a, b, c = referring(copy, "ALTER TABLE a ADD CHECK (id < 1000)")
    a.insert(id=BAD)
    copy.sink.write(batch_of(1, a.take()))
    for key in range(2, 2 + BATCHES):
        a.insert(id=key)
        b.insert(id=BAD + key, up=BAD)
        b.insert(id=key, up=key)
        c.insert(id=key, up=key)
        copy.sink.write(batch_of(key, c.take(), b.take(), a.take()))
    assert {(each.table, bool(each.error)) for each in letters(store)} == {
        ("public.a", True),
        ("public.b", True),
    }
    assert len(letters(store)) == 1 + BATCHES and ids(copy, "c") == list(range(2, 2 + BATCHES))


def test_rows_that_go_over_several_tables_of_a_batch_are_not_refused(
    copy: PostgresHarness, store: LetterStore
) -> None:
    a, b, c = tables = referring(copy)
    for key in range(BATCHES):
        a.insert(id=key)
        b.insert(id=key, up=key)
        c.insert(id=key, up=key)
        for each in tables:
            copy.sink.write(batch_of(2 * key + 1, each.take()))
        for each in (c, b, a):
            each.delete(key)
        copy.sink.write(batch_of(2 * key + 2, a.take(), b.take(), c.take()))
    assert not letters(store) and not ids(copy, "a")


def test_f054_truncate_of_tables_that_refer_to_each_other_passes_while_rows_wait(
    copy: PostgresHarness, store: LetterStore
) -> None:
    a, b, _ = referring(
        copy,
        "ALTER TABLE a ADD CHECK (id < 1000)",
        "ALTER TABLE b ADD CHECK (id < 1000)",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END$$",
        "CREATE TRIGGER t BEFORE DELETE ON b EXECUTE FUNCTION slow()",
    )
    for source, row in ((a, {"id": 1}), (b, {"id": 1, "up": 1})):
        source.insert(**row)
        source.insert(id=BAD)
    copy.sink.write(batch_of(1, a.take(), b.take()))
    assert len(letters(store)) == 2
    a.truncate()
    b.truncate()
    copy.sink.write(batch_of(2, a.take(), b.take()))
    assert not letters(store) and not ids(copy, "a")


def test_row_that_is_referred_to_by_its_own_table_goes_behind_what_lets_go_of_it(
    copy: PostgresHarness, store: LetterStore
) -> None:
    tree = Source(relation("tree", columns={"id": PgType.INT8, "up": PgType.INT8}))
    copy.sink.prepare(tree.relation)
    execute(copy, "ALTER TABLE tree ADD FOREIGN KEY (up) REFERENCES tree")
    tree.insert(id=1)
    tree.insert(id=2)
    tree.insert(id=3, up=1)
    copy.sink.write(batch_of(1, tree.take()))
    tree.update(3, up=2)
    tree.delete(1)
    copy.sink.write(batch_of(2, tree.take()))
    assert not letters(store) and ids(copy, "tree") == [2, 3]


def test_value_that_goes_from_one_row_to_another_is_not_refused(
    copy: PostgresHarness, store: LetterStore
) -> None:
    source = checked(copy, "ALTER TABLE orders ADD UNIQUE (part)")
    source.update(1, part="another")
    source.update(2, part="part 1")
    source.update(1, n=10)
    copy.sink.write(batch_of(2, source.take()))
    assert not letters(store) and copy.rows(source.relation) == source.expected()
