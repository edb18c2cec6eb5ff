"""Gives a table a replica identity, where we are told to: by it the WAL can tell its rows apart.

FULL, because it always can be had; Postgres then writes old rows whole. The lock that this needs
keeps out readers as well, and would end by deadlock whoever has read the table and is about to
write it; so it is taken alone, and waited for only briefly.
"""

from __future__ import annotations

import psycopg

from tailrace.postgres.catalog import Kind, TableInfo, read_leaves
from tailrace.postgres.quote import qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.table_lock import refusal


def make_identifiable(conn: Connection, table: TableInfo, *, lock_timeout_ms: int) -> None:
    """Alter the table, and each of its partitions, that has no usable replica identity. Raises
    SourceError; with `retry` if the lock was not won.
    """
    leaves = read_leaves(conn, table) if table.kind is Kind.PARTITIONED else []
    try:
        for each in (table, *leaves):
            if not each.has_usable_identity:
                with conn.transaction():
                    setting = "SELECT set_config('lock_timeout', %s, true)"
                    conn.execute(setting, (str(lock_timeout_ms),))
                    query = "ALTER TABLE ONLY {} REPLICA IDENTITY FULL"
                    conn.execute(statement(query, qualified(each.schema, each.name)))
    except psycopg.Error as error:
        raise refusal(conn, table, error) from error
