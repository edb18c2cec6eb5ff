"""The publication of the tables that are just being compared.

A table is in it no longer than that: whoever drops its key could not update it. It is the leader's
alone; what one who led before has left in it, or a session that the server has ended, goes with
the next turn of whoever leads.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Final

import psycopg

from tailrace.errors import NotLeading
from tailrace.postgres import leading
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.quote import SourceNames, identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.table_lock import below_deadlock_timeout

LOCK_TIMEOUT_MS: Final = 100
"""How long a turn waits for whoever alters or drops a table that is to leave; another will come."""

_GONE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject)
"""A table was dropped just when it was to leave."""

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
    along. If nobody leads any more that is done as well. Raises NotLeading, psycopg.Error.
    """
    with conn.transaction():
        _must_not_lead_elsewhere(conn, names, leader_pid)
        _take_out(conn, names, {oid})
        # Whoever leads by now may have made it anew, for comparisons of his own.
        _must_not_lead_elsewhere(conn, names, leader_pid)


def withdraw_but(
    conn: Connection, names: SourceNames, oids: Collection[int], *, leader_pid: int
) -> None:
    """Take out all tables but these; one that somebody alters or drops just now stays for now, and
    holds up no other. Raises NotLeading, psycopg.Error.
    """
    found = fingerprint(conn, names.shadow)
    if found is None:
        return
    members = {each.relation_oid for each in found.members}
    leaving = members - set(oids)
    # All of them go at once if none stays: whoever alters a table does not hold that up.
    if leaving == members and _is_out(conn, names, leaving, leader_pid):
        return
    for oid in sorted(leaving):
        _is_out(conn, names, {oid}, leader_pid)


def _is_out(conn: Connection, names: SourceNames, oids: Set[int], leader_pid: int) -> bool:
    try:
        with leading.as_leader(conn, names.slot, leader_pid):
            wait_ms = below_deadlock_timeout(conn, LOCK_TIMEOUT_MS)
            conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(wait_ms),))
            _take_out(conn, names, oids)
    except (psycopg.errors.LockNotAvailable, *_GONE):
        return False
    return True


def _must_not_lead_elsewhere(conn: Connection, names: SourceNames, leader_pid: int) -> None:
    if leading.leader_pid(conn, names.slot) not in (leader_pid, None):
        raise NotLeading("another process leads by now")


def _take_out(conn: Connection, names: SourceNames, oids: Set[int]) -> None:
    name, members = identifier(names.shadow), _members(conn, names)
    if members.keys() <= oids:
        conn.execute(statement("DROP PUBLICATION IF EXISTS {}", name))
        return
    for oid in members.keys() & oids:
        conn.execute(statement("ALTER PUBLICATION {} DROP TABLE ONLY {}", name, members[oid]))


def _members(conn: Connection, names: SourceNames) -> dict[int, psycopg.sql.Identifier]:
    found = conn.execute(_MEMBERS, (names.shadow,))
    return {oid: qualified(schema, name) for oid, schema, name in found}
