"""Rows of buffers that the durable log has: found by a snapshot, deleted in bounded batches.

What a snapshot shows was committed before it. So if the log has passed a position that was taken
after the snapshot, it has every row that the snapshot shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from psycopg import sql

from tailrace.postgres.buffer import buffer, read_buffers
from tailrace.postgres.session import Connection

BATCH_ROWS: Final = 10_000

_FOREIGN: Final = "SELECT table_oid::bigint FROM tailrace.change_tracking WHERE source <> %s"


def buffers_of(conn: Connection, source: str) -> dict[int, int]:
    """The buffers that the log of this source takes in, by table; those of tables that are gone as
    well, until they are empty.
    """
    foreign = {oid for (oid,) in conn.execute(_FOREIGN, (source,))}
    return {table: oid for table, oid in read_buffers(conn).items() if table not in foreign}


# The rows are found by the index on xid and deleted by their place: no row is looked at twice.
_DELETE: Final = """
DELETE FROM {buffer} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {buffer}
     WHERE xid < pg_snapshot_xmax({passed}) AND pg_visible_in_snapshot(xid, {passed})
     LIMIT {batch}))
"""


def delete_passed(conn: Connection, tables: Iterable[int], passed: str) -> dict[int, int]:
    """Delete up to a batch of each buffer's rows that this snapshot shows; how many of each."""
    deleted = {}
    for table in tables:
        query = sql.SQL(_DELETE).format(
            buffer=buffer(table),
            passed=sql.SQL("{}::pg_snapshot").format(sql.Literal(passed)),
            batch=sql.Literal(BATCH_ROWS),
        )
        deleted[table] = conn.execute(query).rowcount
    return deleted
