"""Lets the rows of a buffer be deleted though somebody else publishes its deletes.

Postgres refuses a DELETE on a table that a publication has with its deletes, `FOR ALL TABLES` for
instance, unless old rows can be told apart; a buffer has no key. So old rows are written to the WAL
whole, but only where somebody asks for it by such a publication.
"""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.postgres.buffer import buffer
from tailrace.postgres.quote import statement
from tailrace.postgres.session import Connection

LOCK_TIMEOUT_MS: Final = 100


def make_deletable(conn: Connection, table_oid: int) -> bool:
    """Give a table's buffer replica identity FULL; False if its writers hold up the lock. Raises
    psycopg.Error.
    """
    try:
        with conn.transaction():
            setting = "SELECT set_config('lock_timeout', %s, true)"
            conn.execute(setting, (str(LOCK_TIMEOUT_MS),))
            conn.execute(statement("ALTER TABLE {} REPLICA IDENTITY FULL", buffer(table_oid)))
    except psycopg.errors.LockNotAvailable:
        return False
    return True
