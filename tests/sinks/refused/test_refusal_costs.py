"""What refused rows cost: no more locks, and no more listing for each row, when there are many."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import closing

import pytest

from tailrace.sinks.postgres import sink as postgres_sink
from tailrace.storage.store import Entries
from tests.server import Server
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.killed_parking import BAD
from tests.sinks.refused.refusing import LetterStore, checked, letters, numbers
from tests.sinks.source import batch_of

LARGE = 1 << 20

LOCKS = """
SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'relation' AND a.datname = current_database()
AND a.backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class ListedStore(LetterStore):
    """Counts the letters that it lists."""

    listed_count = 0

    def list(self, prefix: str, *, after: str = "") -> Entries:
        entries = super().list(prefix, after=after)
        self.listed_count += sum("/letters/" in entry.key for entry in entries)
        return entries


def locks_of(server: Server, patch: pytest.MonkeyPatch, *, refused_count: int) -> int:
    """How many tables are locked before a batch with so many refused rows commits."""
    seen: list[int] = []
    with server.database() as fresh, closing(PostgresHarness(fresh, store=LetterStore())) as copy:
        source = checked(copy)
        for key in range(10, 10 + 2 * refused_count):
            source.insert(id=key, n=BAD if key % 2 else 1)

        def look(name: str) -> None:
            if name == "apart.before_commit":
                with fresh.connect() as conn:
                    seen.extend(count for (count,) in conn.execute(LOCKS))

        patch.setattr(postgres_sink, "failpoint", look)
        copy.sink.write(batch_of(2, source.take()))
    (count,) = seen
    return count


def listed_by(server: Server, *, waiting_count: int) -> int:
    """How many letters are listed when so many rows that wait change without a large value."""
    store = ListedStore()
    with server.database() as fresh, closing(PostgresHarness(fresh, store=store)) as copy:
        source = checked(copy)
        keys = range(10, 10 + waiting_count)
        for key in keys:
            source.insert(id=key, n=BAD, doc="large")
        copy.sink.write(batch_of(2, source.take()))
        for key in keys:
            source.update(key, n=1, unchanged=["doc"])
        store.listed_count = 0
        copy.sink.write(batch_of(3, source.take()))
        listed_count = store.listed_count
        assert len(letters(store)) == 2 * waiting_count
    return listed_count


def test_batch_holds_no_more_locks_when_more_of_its_rows_are_refused(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = locks_of(postgres, monkeypatch, refused_count=2)
    assert locks_of(postgres, monkeypatch, refused_count=20) <= few


def test_rows_that_wait_are_looked_for_by_their_keys(postgres: Server) -> None:
    few = listed_by(postgres, waiting_count=10)
    assert listed_by(postgres, waiting_count=40) <= 4 * few


def peak_of(server: Server, *, row_count: int) -> int:
    """How much memory is in use at most while so many rows change without their large values, and
    one of them is refused, beside one that waits.
    """
    store = LetterStore()
    with server.database() as fresh, closing(PostgresHarness(fresh, store=store)) as copy:
        source = checked(copy)
        keys = range(10, 10 + row_count)
        for key in keys:
            source.insert(id=key, n=1, doc=str(key) * (LARGE // 2))
        source.update(1, n=BAD, unchanged=["doc"])
        copy.sink.write(batch_of(2, source.take()))
        for key in keys:
            source.update(key, n=BAD if key == 12 else 2, unchanged=["doc"])
        changes = batch_of(3, source.take())
        tracemalloc.start()
        try:
            copy.sink.write(changes)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        _, letter = letters(store)
        assert len(json.loads(letter.payload)["row"]["doc"]) == LARGE, "a letter is whole"
        found = numbers(copy)
        assert [found[key] for key in keys] == [1 if key == 12 else 2 for key in keys]
        with fresh.connect() as conn:
            sizes = conn.execute("SELECT DISTINCT length(doc) FROM orders WHERE id > 9").fetchall()
        assert sizes == [(LARGE,)]
    return peak


def test_large_values_that_were_not_sent_are_read_of_rows_that_are_refused_alone(
    postgres: Server,
) -> None:
    few = peak_of(postgres, row_count=4)
    assert peak_of(postgres, row_count=40) < few + 4 * LARGE
