"""A table's shape as the catalog shows it: what a Relation frame would say, and where its rows are.

Read inside a transaction that has imported a snapshot it is the shape as of that snapshot, read
elsewhere that of now. If both are equal, nothing between them has rewritten the table, moved its
rows or changed its columns: a reader under the snapshot has seen every row. If they differ, it may
have missed any number of them without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.model import Column, Relation, ReplicaIdentity
from tailrace.postgres.catalog import describe_relations, read_tables
from tailrace.postgres.pgoutput import relation_frame
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows itself: a partition, or the table if it has none."""

    oid: int
    schema: str
    name: str
    filenode: int


@dataclass(frozen=True, slots=True)
class TableShape:
    """`attributes` are the numbers of the relation's columns: a column that is dropped and added
    again has another one.
    """

    relation: Relation
    attributes: tuple[int, ...]
    leaves: tuple[Leaf, ...]

    @property
    def frame(self) -> bytes:
        """The Relation frame that Postgres sends for this shape."""
        return relation_frame(self.relation)


# pgoutput sends neither dropped nor generated columns (logicalrep_should_publish_column).
_COLUMNS: Final = """
SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnum
  FROM pg_attribute AS a
 WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 ORDER BY a.attnum
"""

# Not pg_partition_tree: it shows the partitions of now, whatever the snapshot.
_LEAVES: Final = """
WITH RECURSIVE tree (oid) AS (
    SELECT %s::oid
     UNION ALL
    SELECT i.inhrelid
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relfilenode::bigint
  FROM tree
  JOIN pg_class AS c ON c.oid = tree.oid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r'
 ORDER BY c.oid
"""


def read_shape(conn: Connection, oid: int) -> TableShape | None:
    """The shape as the session sees it; None if there is no such table."""
    tables = read_tables(conn, [oid])
    if not tables:
        return None
    (table,) = tables
    catalog = describe_relations(conn, [oid]).get(oid)
    rows = conn.execute(_COLUMNS, (oid,)).fetchall()
    is_full = table.identity is ReplicaIdentity.FULL
    columns = tuple(
        Column(name, type_oid, typmod, is_full or name in table.identity_columns)
        for name, type_oid, typmod, _ in rows
    )
    key = catalog.key if catalog else ()
    relation = Relation(
        oid=oid,
        schema=table.schema,
        name=table.name,
        identity=table.identity,
        columns=columns,
        key=key or _flagged(columns),
        type_names=catalog.type_names if catalog else (),
        is_keyless=table.is_keyless,
    )
    leaves = tuple(Leaf(*row) for row in conn.execute(_LEAVES, (oid,)))
    return TableShape(relation, tuple(attnum for *_, attnum in rows), leaves)


def _flagged(columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(column.name for column in columns if column.in_identity)
