"""From whichever version a schema comes, it becomes what a new one is."""

from __future__ import annotations

import pytest

from tailrace.control.schema import _migrations, migrate, remove
from tailrace.postgres.session import Connection

CODE = """
SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proacl::text FROM pg_proc AS p
 WHERE p.pronamespace IN ('tailrace'::regnamespace, 'tailrace_changes'::regnamespace) ORDER BY 1
"""
RELATIONS = """
SELECT c.oid::regclass::text, c.relacl::text,
       CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid) END,
       ARRAY(SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
              WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       ARRAY(SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = c.oid ORDER BY tgname)
  FROM pg_class AS c
 WHERE c.relnamespace IN ('tailrace'::regnamespace, 'tailrace_changes'::regnamespace)
   AND c.relkind IN ('r', 'v') ORDER BY 1
"""
ADD = """
INSERT INTO tailrace.change_tracking (table_oid, source, schema_name, table_name, cdc_mode)
VALUES (1, 'tailrace_main', 'app', 't', 'WAL')
"""


def made(conn: Connection) -> list[list[tuple[object, ...]]]:
    """All that there is in the schemas."""
    return [conn.execute(query).fetchall() for query in (CODE, RELATIONS)]


@pytest.mark.parametrize("count", [4, 7, 9, 11, 12, 13])
def test_a_schema_of_an_earlier_version_becomes_what_a_new_one_is(
    capture: Connection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    migrate(capture)
    anew = made(capture)
    remove(capture)
    known = _migrations()[:count]
    with monkeypatch.context() as older:
        older.setattr("tailrace.control.schema._migrations", lambda: known)
        migrate(capture)
    capture.execute(ADD)
    migrate(capture)
    assert made(capture) == anew
    assert capture.execute("SELECT cdc_mode FROM tailrace.stat_tables").fetchall() == [("WAL",)]
