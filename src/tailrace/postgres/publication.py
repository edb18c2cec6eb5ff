"""The publication: which tables the stream carries.

A publication that is changed by hand leaves a gap that Postgres does not report: the slot stays
healthy and rows are missing. Every catalog row behind it has an oid and an xmin, which change with
each such act, so they are kept and compared as a `Fingerprint`. A table is added in one short
transaction that first locks out its writers: no transaction is ever seen in part, and what the
table held before is known to be nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

import psycopg

from tailrace.errors import SchemaError, SourceError
from tailrace.postgres.blockers import listed, lockers
from tailrace.postgres.catalog import Kind, TableInfo, read_tables
from tailrace.postgres.quote import identifier, qualified, shown, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error

BEFORE_COMMIT_MS_MAX: Final = 10_000
"""How long `before_commit` may hold up the writers of a table; then the server rolls back."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One table of a publication; `table` is its name when it was read and is not compared."""

    relation_oid: int
    oid: int
    xmin: int
    table: str = field(compare=False)

    def to_dict(self) -> dict[str, int | str]:
        """As JSON."""
        return {
            "relation": self.relation_oid,
            "oid": self.oid,
            "xmin": self.xmin,
            "table": self.table,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(value["relation"], value["oid"], value["xmin"], value["table"])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a publication and of each of its memberships; equal means untouched."""

    oid: int
    xmin: int
    members: tuple[Membership, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        members = [member.to_dict() for member in self.members]
        return {"oid": self.oid, "xmin": self.xmin, "members": members}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        members = tuple(Membership.from_dict(member) for member in value["members"])
        return cls(value["oid"], value["xmin"], members)


_FINGERPRINT: Final = """
SELECT p.oid::bigint, p.xmin::text::bigint,
       r.prrelid::bigint, r.oid::bigint, r.xmin::text::bigint, n.nspname || '.' || c.relname
  FROM pg_publication AS p
  LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid
  LEFT JOIN pg_class AS c ON c.oid = r.prrelid
  LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE p.pubname = %s
 ORDER BY r.prrelid
"""


def fingerprint(conn: Connection, publication: str) -> Fingerprint | None:
    """As of now (inside a transaction: as after its commit), or None if there is no such one."""
    rows = conn.execute(_FINGERPRINT, (publication,)).fetchall()
    if not rows:
        return None
    oid, xmin, *_ = rows[0]
    members = tuple(Membership(*member) for _, _, *member in rows if member[0] is not None)
    return Fingerprint(oid, xmin, members)


def create_publication(conn: Connection, publication: str) -> Fingerprint:
    """Make it, without tables, before the slot: decoding uses the catalog of each change's time."""
    query = "CREATE PUBLICATION {} WITH (publish_via_partition_root = true)"
    try:
        conn.execute(statement(query, identifier(publication)))
    except psycopg.errors.InsufficientPrivilege as exc:
        names = (identifier(conn.info.dbname), identifier(conn.info.user))
        raise SourceError(
            f"role {conn.info.user} may not make a publication",
            hint=shown("GRANT CREATE ON DATABASE {} TO {}", *names),
        ) from exc
    except psycopg.Error as exc:
        raise source_error(exc) from exc
    made = fingerprint(conn, publication)
    assert made is not None
    return made


def drop_publication(conn: Connection, publication: str) -> None:
    """Drop it if there is one."""
    try:
        conn.execute(statement("DROP PUBLICATION IF EXISTS {}", identifier(publication)))
    except psycopg.Error as exc:
        raise source_error(exc) from exc


def add_table(
    conn: Connection,
    publication: str,
    table: TableInfo,
    *,
    lock_timeout_ms: int,
    before_commit: Callable[[Fingerprint], None],
) -> None:
    """Publish an empty table.

    `before_commit` gets the fingerprint as it will be and makes it durable; the table's writers
    wait for it. If it raises, nothing has happened. If the session is lost while committing, the
    fingerprint tells afterwards whether the table was added. A lock not won within
    `lock_timeout_ms` is SourceError(retry=True) naming who has it.
    """
    try:
        with conn.transaction():
            _lock(conn, table, lock_timeout_ms)
            _must_be_unchanged(conn, table)
            _must_be_empty(conn, table)
            # ONLY: the children of an inheritance tree are tables of their own.
            query = "ALTER PUBLICATION {} ADD TABLE ONLY {}"
            name = qualified(table.schema, table.name)
            conn.execute(statement(query, identifier(publication), name))
            planned = fingerprint(conn, publication)
            assert planned is not None
            before_commit(planned)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as exc:
        raise SourceError(
            f"{table.qualified} is being written: {listed(lockers(conn, table.oid))}",
            hint="end or commit these transactions; the table is tried again",
            retry=True,
        ) from exc
    except psycopg.Error as exc:
        raise source_error(exc) from exc


def _lock(conn: Connection, table: TableInfo, lock_timeout_ms: int) -> None:
    timeouts = {"lock": str(lock_timeout_ms), "idle": str(BEFORE_COMMIT_MS_MAX)}
    conn.execute(
        """SELECT set_config('lock_timeout', %(lock)s, true),
                  set_config('idle_in_transaction_session_timeout', %(idle)s, true)""",
        timeouts,
    )
    conn.execute(_on_table("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", table))


def _must_be_unchanged(conn: Connection, table: TableInfo) -> None:
    if read_tables(conn, [table.oid]) != [table]:
        raise SchemaError(
            f"{table.qualified} was altered while it was being added", hint="try again", retry=True
        )


def _must_be_empty(conn: Connection, table: TableInfo) -> None:
    if holds_rows(conn, table):
        raise SchemaError(
            f"{table.qualified} already holds rows; a base copy is not supported yet",
            hint="empty it, or leave it out of capture.tables",
        )


def holds_rows(conn: Connection, table: TableInfo) -> bool:
    """True if the table, or any partition of it, has a row that this session can see."""
    row = conn.execute(_on_table("SELECT EXISTS (SELECT FROM {})", table)).fetchone()
    assert row is not None
    return bool(row[0])


def _on_table(query: str, table: TableInfo) -> psycopg.sql.Composed:
    """The rows of a partitioned table are in its partitions, those of any other in itself."""
    if table.kind is not Kind.PARTITIONED:
        query = query.replace("{}", "ONLY {}")
    return statement(query, qualified(table.schema, table.name))
