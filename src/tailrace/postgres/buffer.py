"""The buffer of a table: where its triggers put changes, and what the parts of it are called.

A buffer is known by the oid of its table, which outlives every rename. Columns that a row of the
table has are kept in `new_<slot>` and `old_<slot>`; which slot holds which column is said by the
shape that the row names.
"""

from __future__ import annotations

import re
from typing import Final

from psycopg import sql

from tailrace.postgres.quote import qualified
from tailrace.postgres.session import Connection

SCHEMA: Final = "tailrace_changes"

FIXED_COLUMNS: Final = (
    *("seq", "xid", "op", "depth", "ts", "key_hash", "shape"),
    *("new_row", "old_row"),
)
"""What every buffer begins with, in this order. `shape` is the number of one, or for a row that
fits none its form; a row whose shape says so is kept whole in `new_row` and `old_row`."""

_BUFFER: Final = re.compile(r"changes_([0-9]{1,10})")


def buffer_name(table_oid: int) -> str:
    """`changes_<oid>`, in schema `tailrace_changes`."""
    return f"changes_{table_oid}"


def buffer(table_oid: int) -> sql.Identifier:
    """The same, quoted and with its schema."""
    return qualified(SCHEMA, buffer_name(table_oid))


def capture_function(table_oid: int) -> sql.Identifier:
    """The function of the table's triggers; it takes no arguments."""
    return qualified(SCHEMA, f"capture_{table_oid}")


def row_trigger(table_oid: int) -> str:
    """The table's own name for its trigger: partitions get one of their root by that name, and a
    table that has been captured by itself until then may become one.
    """
    return f"tailrace_capture_row_{table_oid}"


def truncate_trigger(table_oid: int) -> str:
    """The same for the trigger of TRUNCATE."""
    return f"tailrace_capture_truncate_{table_oid}"


def table_of_buffer(schema: str, name: str) -> int | None:
    """The oid of the table whose buffer has this name; None if it is no buffer.

    >>> table_of_buffer("tailrace_changes", "changes_16390")
    16390
    """
    found = _BUFFER.fullmatch(name)
    return int(found[1]) if schema == SCHEMA and found is not None else None


_CAPTURES: Final = """
SELECT DISTINCT substring(found.name FROM '[0-9]+$')::bigint
  FROM (SELECT relname::text FROM pg_class
         WHERE relnamespace = to_regnamespace('tailrace_changes') AND relkind = 'r'
           AND relname ~ '^changes_[0-9]{1,10}$'
         UNION ALL
        SELECT proname::text FROM pg_proc
         WHERE pronamespace = to_regnamespace('tailrace_changes')
           AND proname ~ '^capture_[0-9]{1,10}$') AS found (name)
 ORDER BY 1
"""


def read_captures(conn: Connection) -> list[int]:
    """The oids by which there is a buffer, or a function of triggers."""
    return [oid for (oid,) in conn.execute(_CAPTURES)]


_BUFFERS: Final = """
SELECT c.relname::text, c.oid::bigint FROM pg_class AS c
 WHERE c.relnamespace = to_regnamespace('tailrace_changes') AND c.relkind = 'r'
 ORDER BY c.oid
"""


def read_buffers(conn: Connection) -> dict[int, int]:
    """The oid of each buffer that there is, by the oid of its table, be that gone or not."""
    found = ((table_of_buffer(SCHEMA, name), oid) for name, oid in conn.execute(_BUFFERS))
    return {table: oid for table, oid in found if table is not None}
