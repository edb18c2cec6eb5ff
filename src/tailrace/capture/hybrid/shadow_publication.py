"""The publication of the tables that are just being compared.

A table is in it no longer than that: whoever drops its key could not update it. It is the leader's
alone; what one who led before has left in it, or a session that the server has ended, goes with
the next turn of whoever leads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import psycopg

from tailrace.errors import NotLeading
from tailrace.postgres import leading
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.publication import drop_publication, fingerprint
from tailrace.postgres.quote import SourceNames, identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.table_lock import below_deadlock_timeout

LOCK_TIMEOUT_MS: Final = 100
"""How long a turn waits for whoever alters a table that is to leave; there will be another."""

_MEMBERS: Final = """
SELECT r.prrelid::bigint, n.nspname::text, c.relname::text
  FROM pg_publication AS p
  JOIN pg_publication_rel AS r ON r.prpubid = p.oid
  JOIN pg_class AS c ON c.oid = r.prrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE p.pubname = %s
"""


def publish(conn: Connection, names: SourceNames, table: TableInfo, *, leader_pid: int) -> None:
    """Put a table into it. Raises NotLeading, psycopg.Error."""
    name = identifier(names.shadow)
    with leading.as_leader(conn, names.slot, leader_pid):
        if fingerprint(conn, names.shadow) is None:
            query = "CREATE PUBLICATION {} WITH (publish_via_partition_root = true)"
            conn.execute(statement(query, name))
        # One whose session was lost may have left the table there.
        if table.oid not in _members(conn, names):
            query = "ALTER PUBLICATION {} ADD TABLE ONLY {}"
            conn.execute(statement(query, name, qualified(table.schema, table.name)))


def withdraw(conn: Connection, names: SourceNames, oid: int, *, leader_pid: int) -> None:
    """Take a table, whatever it is called by now, out of it; the last one takes the publication
    along. If nobody leads any more that is done as well. Raises NotLeading, SourceError,
    psycopg.Error.
    """
    with conn.transaction():
        if leading.leader_pid(conn, names.slot) not in (leader_pid, None):
            raise NotLeading("another process leads by now")
        _keep(conn, names, _members(conn, names).keys() - {oid})


def withdraw_but(
    conn: Connection, names: SourceNames, oids: Collection[int], *, leader_pid: int
) -> None:
    """Take out all tables but these; one that somebody alters just now stays for now. Raises
    NotLeading, SourceError, psycopg.Error.
    """
    found = fingerprint(conn, names.shadow)
    if found is None or (oids and {each.relation_oid for each in found.members} <= set(oids)):
        return
    try:
        with leading.as_leader(conn, names.slot, leader_pid):
            # Several are locked one after the other: whoever alters them may do so as well.
            wait_ms = below_deadlock_timeout(conn, LOCK_TIMEOUT_MS)
            conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(wait_ms),))
            _keep(conn, names, oids)
    except psycopg.errors.LockNotAvailable:
        return


def _keep(conn: Connection, names: SourceNames, oids: Collection[int]) -> None:
    members = _members(conn, names)
    if not members.keys() & set(oids):
        # Nobody who alters a table holds this up.
        drop_publication(conn, names.shadow)
        return
    for oid in members.keys() - set(oids):
        query = "ALTER PUBLICATION {} DROP TABLE ONLY {}"
        conn.execute(statement(query, identifier(names.shadow), members[oid]))


def _members(conn: Connection, names: SourceNames) -> dict[int, psycopg.sql.Identifier]:
    found = conn.execute(_MEMBERS, (names.shadow,))
    return {oid: qualified(schema, name) for oid, schema, name in found}
