"""Can a table be told from every other by its name, and can its names be written at all?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.finding import Finding, blocker
from tailrace.postgres.quote import identifier, qualified, shown
from tailrace.postgres.session import NO_ENCODING, Connection

_NAMESAKES: Final = """
SELECT n.nspname::text, c.relname::text
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname || '.' || c.relname = %s AND c.oid <> %s::oid AND c.relkind IN ('r', 'p')
 ORDER BY n.nspname
"""


def name_findings(conn: Connection, table: TableInfo) -> Iterator[Finding]:
    """What is wrong with the names of a table and of its columns."""
    names = (table.schema, table.name, *table.columns)
    odd = [name for name in names if not name.isascii()]
    if odd and conn.info.parameter_status("server_encoding") == NO_ENCODING:
        yield blocker(
            table.qualified,
            f"has names of unknown letters, as the database has no encoding: {', '.join(odd)}",
            "rename them, with letters of ASCII only",
        )
    elif table.qualified.count(".") > 1:
        yield from _namesakes(conn, table)


def _namesakes(conn: Connection, table: TableInfo) -> Iterator[Finding]:
    """With a dot in them, two schemas and tables can have one full name."""
    for schema, name in conn.execute(_NAMESAKES, (table.qualified, table.oid)):
        other = f"{identifier(schema).as_string()}.{identifier(name).as_string()}"
        free = identifier(table.name.replace(".", "_"))
        yield blocker(
            table.qualified,
            f"cannot be told from {other}, whose name reads the same",
            shown("ALTER TABLE {} RENAME TO {};", qualified(table.schema, table.name), free),
        )
