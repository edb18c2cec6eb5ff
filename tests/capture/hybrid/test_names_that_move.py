"""A table that takes the name of another in the middle of a turn is not taken for it."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.capture.hybrid.handover import Handover
from tailrace.capture.hybrid.upkeep import TriggerUpkeep
from tailrace.capture.roll import rolls_of
from tailrace.control.schema import migrate
from tailrace.control.tracking import read_tracked
from tailrace.errors import SchemaError
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import drop_triggers
from tailrace.storage import FileStore
from tests.capture.draining import leading
from tests.capture.hybrid.test_two_leaders import no_shadow, take_up
from tests.capture.running import NAMES, hybrid
from tests.server import Database

OURS = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE starts_with(tgname, 'tailrace')"
RULES = hybrid("auto").rules


def judged(conn: Connection) -> TableInfo:
    """The table as a turn has found it."""
    (table,) = tables_matching(conn, ["public.t"])
    return table


def put_another_in_its_place(source: psycopg.Connection) -> None:
    """As whoever has rebuilt a table does."""
    source.execute(
        """BEGIN; CREATE TABLE anew (id bigint PRIMARY KEY, w int);
           ALTER TABLE t RENAME TO t_old; ALTER TABLE anew RENAME TO t; COMMIT"""
    )


def test_triggers_are_not_put_back_on_another_table_of_that_name(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    take_up(database, source, store, "TRIGGER")
    with connect(database.dsn) as conn, leading(database.dsn) as pid:
        table, (row,) = judged(conn), read_tracked(conn, NAMES.slot).values()
        drop_triggers(conn, table, lock_timeout_ms=1000)
        put_another_in_its_place(source)
        with pytest.raises(SchemaError) as raised:
            TriggerUpkeep(store, NAMES, pid).mend(conn, table, row, RULES)
    assert raised.value.retry
    assert source.execute(OURS).fetchall() == []
    # It has other columns, which the function of the first knows nothing of.
    source.execute("INSERT INTO t VALUES (1, 2)")


def test_another_table_of_that_name_does_not_go_back_to_triggers(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    take_up(database, source, store, "WAL")
    with connect(database.dsn) as conn, leading(database.dsn) as pid:
        migrate(conn)
        table = judged(conn)
        put_another_in_its_place(source)
        # Both are published by now.
        source.execute("ALTER PUBLICATION tailrace_main ADD TABLE t")
        with pytest.raises(SchemaError):
            Handover(store, NAMES, pid, no_shadow).go_back(conn, table, RULES, rolls_of(NAMES)[0])
    assert source.execute(OURS).fetchall() == []
