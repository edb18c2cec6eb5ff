"""The publication: which tables the stream carries.

A publication that is changed by hand leaves a gap that Postgres does not report: the slot stays
healthy and rows are missing. Every catalog row behind it has an oid and an xmin, which change with
each such act, so they are kept and compared as a `Fingerprint`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

import psycopg

from tailrace.errors import SourceError
from tailrace.postgres.quote import SourceNames, identifier, shown, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error


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


_SCHEMAS_VERSION_MIN: Final = 150000

_SCHEMAS: Final = """
SELECT n.nspname::text
  FROM pg_publication AS p
  JOIN pg_publication_namespace AS s ON s.pnpubid = p.oid
  JOIN pg_namespace AS n ON n.oid = s.pnnspid
 WHERE p.pubname = %s
 ORDER BY 1
"""


def published_schemas(conn: Connection, publication: str) -> list[str]:
    """The schemas all of whose tables it publishes; ours publish none."""
    if conn.info.server_version < _SCHEMAS_VERSION_MIN:
        return []
    return [schema for (schema,) in conn.execute(_SCHEMAS, (publication,)).fetchall()]


def published_tables(conn: Connection, names: SourceNames) -> tuple[Membership, ...]:
    """All tables that are captured, be it their inserts alone."""
    found = (fingerprint(conn, name) for name in (names.publication, names.inserts))
    return tuple(member for each in found if each is not None for member in each.members)


WHOLE: Final = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
INSERTS: Final = "publish = 'insert, truncate', publish_via_partition_root = true"


def create_publication(
    conn: Connection, publication: str, *, inserts_only: bool = False, of_buffers: bool = False
) -> Fingerprint:
    """Make it, without tables, before the slot: decoding uses the catalog of each change's time."""
    options = WHOLE
    if of_buffers:
        # What we delete there, once it is durable, is nobody's change.
        options = "publish = 'insert'"
    elif inserts_only:
        options = INSERTS
    try:
        query = f"CREATE PUBLICATION {{}} WITH ({options})"
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
