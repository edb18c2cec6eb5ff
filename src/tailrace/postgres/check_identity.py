"""Can Postgres tell which row an UPDATE or DELETE meant, and tell it to us?

If it cannot, publishing the table would make the application's own UPDATE and DELETE fail. Of a
partitioned table each partition counts: Postgres writes an old row by the partition's own replica
identity and sends it as if it were by the root's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.model import ReplicaIdentity
from tailrace.postgres.catalog import Kind, Persistence, TableInfo
from tailrace.postgres.finding import Finding, blocker, info, warning
from tailrace.postgres.quote import identifier, qualified, shown

# publicationcmds.c, "replica identity must not contain unpublished generated columns".
_GENERATED_REFUSED_VERSION: Final = 180000

_HARM: Final = "the application's own UPDATE and DELETE would fail"


def identity_findings(table: TableInfo, version_num: int) -> Iterator[Finding]:
    """The table's own replica identity, and the generated columns in and beside it."""
    if not table.has_usable_identity:
        yield blocker(
            table.qualified,
            f"{_missing_identity(table)}: if it were published, {_HARM}",
            _identity_fix(table),
        )
    elif not table.row_key:
        found, harm = (
            ("a deferrable key", "none of which may be null where rows are upserted")
            if table.key
            else ("no key", "and equal ones cannot be told apart: it is left out of upserts")
        )
        yield warning(
            table.qualified,
            f"has {found}, only replica identity full: a row is known by all its columns, {harm}",
            _identity_fix(table),
        )
    if table.generated:
        yield _generated(table, version_num)


def leaf_storage_findings(root: TableInfo, leaf: TableInfo) -> Iterator[Finding]:
    """Whether a partition's changes are in the wal; the finding is about the table."""
    subject, partition = root.qualified, f"partition {leaf.qualified}"
    if leaf.kind is Kind.FOREIGN:
        names = (qualified(root.schema, root.name), qualified(leaf.schema, leaf.name))
        yield blocker(
            subject,
            f"{partition} is a foreign table: its rows are not in this server's wal",
            shown("ALTER TABLE {} DETACH PARTITION {};", *names),
        )
    if leaf.persistence is Persistence.UNLOGGED:
        yield blocker(
            subject,
            f"{partition} is unlogged: its changes are not in the wal",
            _alter(leaf, "SET LOGGED"),
        )


def leaf_identity_findings(root: TableInfo, leaf: TableInfo, version_num: int) -> Iterator[Finding]:
    """Whether a partition's old rows are sent as those of its table; about the table as well."""
    subject, partition = root.qualified, f"partition {leaf.qualified}"
    if leaf.kind is Kind.FOREIGN:
        return
    if not leaf.has_usable_identity:
        yield blocker(
            subject,
            f"{partition} {_missing_identity(leaf)}: if the table were published, {_HARM}",
            _identity_fix(leaf),
        )
    elif root.has_usable_identity and not _sends_the_same(root, leaf):
        yield blocker(
            subject,
            f"{partition} has another replica identity: old rows would be sent without all of "
            "what identifies them in the table",
            _alter(leaf, "REPLICA IDENTITY DEFAULT" if _is_plain(root) else _FULL),
        )
    elif _is_refused(leaf, version_num) and not _is_refused(root, version_num):
        yield blocker(
            subject,
            f"{partition} has generated columns in its replica identity: if the table were "
            f"published, {_HARM}",
            _identity_fix(leaf),
        )


_FULL: Final = "REPLICA IDENTITY FULL"
_ADD_KEY: Final = "ADD PRIMARY KEY (…)"


def _sends_the_same(root: TableInfo, leaf: TableInfo) -> bool:
    if leaf.identity is ReplicaIdentity.FULL:
        return True
    if root.identity is ReplicaIdentity.FULL:
        return False
    return {*root.identity_columns} <= {*leaf.identity_columns}


def _is_plain(table: TableInfo) -> bool:
    return table.identity is ReplicaIdentity.DEFAULT


def _missing_identity(table: TableInfo) -> str:
    match table.identity:
        case ReplicaIdentity.NOTHING:
            return "has replica identity nothing"
        case ReplicaIdentity.INDEX:
            return "has a replica identity index that is gone or not valid"
    return "has a deferrable primary key only" if table.key else "has no primary key"


def _identity_fix(table: TableInfo) -> str:
    """What gives the table a replica identity that is of use, with as little cost as can be."""
    if table.is_key_usable and not {*table.key} & {*table.generated}:
        return _alter(table, "REPLICA IDENTITY DEFAULT")
    if table.spare_index is not None:
        names = (qualified(table.schema, table.name), identifier(table.spare_index))
        return shown("ALTER TABLE {} REPLICA IDENTITY USING INDEX {};", *names)
    # A deferrable key has to go before there can be another.
    return _alter(table, "DROP CONSTRAINT …, ADD PRIMARY KEY (…)" if table.key else _ADD_KEY)


def _generated(table: TableInfo, version_num: int) -> Finding:
    listed = ", ".join(
        f"{column} (virtual)" if column in table.virtual else column for column in table.generated
    )
    if {*table.row_key} & {*table.generated}:
        return blocker(
            table.qualified,
            f"has generated columns in its key, and these are not captured: {listed}",
            _identity_fix(table)
            if table.spare_index is not None
            else _alter(table, "REPLICA IDENTITY USING INDEX …") + " of plain columns, not null",
        )
    if table.identity is ReplicaIdentity.FULL:
        return (blocker if _is_refused(table, version_num) else warning)(
            table.qualified,
            f"has generated columns ({listed}) in its replica identity: from postgres 18 on, the "
            "application's own UPDATE and DELETE fail if it is published",
            _identity_fix(table),
        )
    return info(table.qualified, f"has generated columns, which are not captured: {listed}")


def _is_refused(table: TableInfo, version_num: int) -> bool:
    is_in_identity = table.identity is ReplicaIdentity.FULL and bool(table.generated)
    return is_in_identity and version_num >= _GENERATED_REFUSED_VERSION


def _alter(table: TableInfo, action: str) -> str:
    return shown("ALTER TABLE {}", qualified(table.schema, table.name)) + f" {action};"
