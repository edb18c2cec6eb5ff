"""A process that takes bases may die anywhere: what it leaves is no base, and the next one is
whole.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.log.bases import newest_positions
from tailrace.storage import FileStore
from tests.bases.oracle import assert_equal
from tests.bases.process import main
from tests.bases.taking import captured, take
from tests.capture.running import wait_caught_up, wait_until
from tests.nursery import die
from tests.server import Database

STEPS = [
    "base.after_slot",
    "base.after_import",
    "base.after_snapshot",
    "base.after_plan",
    "base.after_part",
    "base.after_part:3",
    "base.before_complete",
    "base.after_complete",
]


@pytest.mark.parametrize("step", STEPS)
def test_f021_killed_at_any_step_the_next_base_is_the_table(
    database: Database, source: psycopg.Connection, store: FileStore, tmp_path: Path, step: str
) -> None:
    with captured(database, store, source, "t") as capture:
        source.execute("DELETE FROM t WHERE id = 1")
        die(main, database.dsn, store.url, failpoint=step, output=tmp_path / "output.txt")
        assert bool(newest_positions(store)) == (step == "base.after_complete")
        source.execute("UPDATE t SET v = 'meanwhile' WHERE id < 100")
        # The server notices that nobody is there any more: nothing is held back.
        wait_until(lambda: _left_behind(source) == [], patience_s=120)
        take(database.dsn, store)
        source.execute("UPDATE t SET v = 'after' WHERE id BETWEEN 50 AND 150")
        wait_caught_up(capture, source)
    assert_equal(store, source, "public.t")
    # One base, and nothing of another.
    assert len({entry.key.rsplit("/", 1)[0] for entry in store.list("bases/")}) == 1


def _left_behind(source: psycopg.Connection) -> list[tuple[object, ...]]:
    query = """SELECT application_name FROM pg_stat_activity
                WHERE application_name LIKE 'tailrace base%'
                UNION ALL SELECT slot_name FROM pg_replication_slots WHERE temporary"""
    return source.execute(query).fetchall()
