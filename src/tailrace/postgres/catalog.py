"""What the catalog says about tables, as of now.

The stream is the truth about a row's shape when it was written; the catalog only tells what the
stream does not carry (primary keys, names of types) and which tables can be taken at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from psycopg.rows import dict_row

from tailrace.model import NamedType, ReplicaIdentity
from tailrace.postgres.named_types import read_named_types
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.session import Connection


class Kind(StrEnum):
    """pg_class.relkind, as far as a name can be mistaken for a table's."""

    TABLE = "r"
    PARTITIONED = "p"
    FOREIGN = "f"
    VIEW = "v"
    MATERIALIZED_VIEW = "m"


class Persistence(StrEnum):
    """pg_class.relpersistence."""

    PERMANENT = "p"
    UNLOGGED = "u"
    TEMPORARY = "t"


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as far as admission looks at it.

    `key` is the primary key, `is_key_usable` if it could serve as replica identity; `spare_index`
    is another unique index that could. `identity_columns` are the columns that Postgres writes of
    an old row through an index: empty if the replica identity is NOTHING, FULL, or names no usable
    index. `virtual` are those of the `generated` columns that are not stored.
    """

    oid: int
    schema: str
    name: str
    kind: Kind
    persistence: Persistence
    identity: ReplicaIdentity
    columns: tuple[str, ...]
    generated: tuple[str, ...]
    virtual: tuple[str, ...]
    key: tuple[str, ...]
    is_key_usable: bool
    identity_columns: tuple[str, ...]
    spare_index: str | None
    is_partition: bool
    children: tuple[str, ...]
    owner: str
    is_owned: bool
    is_in_reach: bool
    is_selectable: bool

    @property
    def qualified(self) -> str:
        """`schema.name`, as the configuration spells it."""
        return f"{self.schema}.{self.name}"

    @property
    def has_usable_identity(self) -> bool:
        """True if Postgres can tell which row an UPDATE or DELETE meant."""
        return self.identity is ReplicaIdentity.FULL or bool(self.identity_columns)

    @property
    def row_key(self) -> tuple[str, ...]:
        """By which a row is known downstream: the primary key if an old row is sent with it, and if
        no two rows can share it, not even inside of a transaction.
        """
        is_sent = self.identity is ReplicaIdentity.FULL or {*self.key} <= {*self.identity_columns}
        return self.key if is_sent and self.is_key_usable else self.identity_columns

    @property
    def is_keyless(self) -> bool:
        """True if only the whole of a row identifies it, and nothing keeps two rows from being
        equal. With a deferrable key they never are, once their transaction has ended.
        """
        return self.identity is ReplicaIdentity.FULL and not self.key

    @property
    def is_readable(self) -> bool:
        """True if this session may read its rows."""
        return self.is_in_reach and self.is_selectable

    @property
    def is_table(self) -> bool:
        """True for a table of its own or the root of a partitioned one."""
        return self.kind in (Kind.TABLE, Kind.PARTITIONED) and not self.is_partition


@dataclass(frozen=True, slots=True)
class RelationCatalog:
    """What a Relation frame does not say.

    `key` is the table's `row_key`. `columns` are those that the stream carries, to be compared with
    the frame's: if they differ, the catalog has moved on. `type_names` holds the types that are not
    built in.
    """

    key: tuple[str, ...]
    is_keyless: bool
    columns: tuple[str, ...]
    type_names: tuple[NamedType, ...]


_NAMES: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
   AND n.nspname NOT IN ('information_schema', 'tailrace', 'tailrace_changes')
   AND NOT starts_with(n.nspname, 'pg_')
 ORDER BY n.nspname, c.relname
"""

# The conditions under which an index can serve as replica identity are those of
# RelationGetIndexList (src/backend/utils/cache/relcache.c): valid, not deferrable, and primary or
# named. pg_has_role(…, 'USAGE') is the test that Postgres makes for ownership.
_TABLES: Final = """
SELECT c.oid::bigint AS oid,
       n.nspname::text AS schema,
       c.relname::text AS name,
       c.relkind::text AS kind,
       c.relpersistence::text AS persistence,
       c.relreplident::text AS identity,
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum) AS columns,
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated <> ''
              ORDER BY a.attnum) AS generated,
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = 'v'
              ORDER BY a.attnum) AS virtual,
       ARRAY(SELECT a.attname::text
               FROM pg_index AS i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
               JOIN pg_attribute AS a ON a.attnum = k.attnum
              WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND k.place <= i.indnkeyatts
                AND i.indisprimary
              ORDER BY k.place) AS key,
       EXISTS (SELECT FROM pg_index AS i
                WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate
              ) AS is_key_usable,
       ARRAY(SELECT a.attname::text
               FROM pg_index AS i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
               JOIN pg_attribute AS a ON a.attnum = k.attnum
              WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND k.place <= i.indnkeyatts
                AND i.indisvalid AND i.indimmediate
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                        WHEN 'i' THEN i.indisreplident ELSE false END
              ORDER BY k.place) AS identity_columns,
       (SELECT x.relname::text
          FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisunique AND NOT i.indisprimary AND i.indisvalid
           AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
           AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                             JOIN pg_attribute AS a ON a.attnum = k.attnum
                            WHERE a.attrelid = c.oid AND k.place <= i.indnkeyatts
                              AND (a.attgenerated <> '' OR NOT a.attnotnull))
         ORDER BY i.indnkeyatts, x.relname LIMIT 1) AS spare_index,
       c.relispartition AS is_partition,
       ARRAY(SELECT h.inhrelid::regclass::text FROM pg_inherits AS h
              WHERE h.inhparent = c.oid AND c.relkind = 'r' ORDER BY 1) AS children,
       pg_get_userbyid(c.relowner)::text AS owner,
       pg_has_role(c.relowner, 'USAGE') AS is_owned,
       has_schema_privilege(n.oid, 'USAGE') AS is_in_reach,
       has_table_privilege(c.oid, 'SELECT') AS is_selectable
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%s::oid[])
 ORDER BY n.nspname, c.relname
"""

_TYPES: Final = """
SELECT attrelid::bigint, array_agg(DISTINCT atttypid::bigint)
  FROM pg_attribute
 WHERE attrelid = ANY (%s::oid[]) AND attnum > 0 AND NOT attisdropped
 GROUP BY attrelid
"""

# Not pg_partition_tree: it locks every partition, and so waits for whoever alters one.
_LEAVES: Final = """
WITH RECURSIVE tree (oid) AS (
    SELECT %s::oid
     UNION ALL
    SELECT i.inhrelid
      FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
)
SELECT c.oid::bigint FROM tree JOIN pg_class AS c ON c.oid = tree.oid AND c.relkind <> 'p'
"""


def relation_names(conn: Connection) -> list[tuple[int, str, str]]:
    """Oid, schema and name of all that a pattern may mean: no schema of the system or of ours."""
    return [(oid, schema, name) for oid, schema, name in conn.execute(_NAMES)]


def schema_names(conn: Connection) -> list[str]:
    """All schemas, also those without a table."""
    return [name for (name,) in conn.execute("SELECT nspname::text FROM pg_namespace")]


def read_tables(conn: Connection, oids: Iterable[int]) -> list[TableInfo]:
    """Those of the relations that still exist, by name."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return [_table_info(row) for row in cursor.execute(_TABLES, (list(oids),))]


def tables_matching(conn: Connection, patterns: Sequence[str]) -> list[TableInfo]:
    """The tables and partition roots that any pattern means, by name; raises ConfigError."""
    parsed = [TablePattern.parse(text) for text in patterns]
    oids = [
        oid
        for oid, schema, name in relation_names(conn)
        if any(pattern.matches(schema, name) for pattern in parsed)
    ]
    return [table for table in read_tables(conn, oids) if table.is_table]


def read_leaves(conn: Connection, root: TableInfo) -> list[TableInfo]:
    """The partitions that hold the rows of a partitioned table."""
    return read_tables(conn, [oid for (oid,) in conn.execute(_LEAVES, (root.oid,))])


def describe_relations(conn: Connection, oids: Sequence[int]) -> dict[int, RelationCatalog]:
    """By oid; a relation that is gone is left out."""
    used: dict[int, list[int]] = dict(conn.execute(_TYPES, (list(oids),)).fetchall())
    types = read_named_types(conn, (oid for own in used.values() for oid in own))
    return {
        table.oid: RelationCatalog(
            key=table.row_key,
            is_keyless=table.is_keyless,
            columns=tuple(c for c in table.columns if c not in table.generated),
            type_names=tuple(types[oid] for oid in used.get(table.oid, ()) if oid in types),
        )
        for table in read_tables(conn, oids)
    }


def _table_info(row: dict[str, Any]) -> TableInfo:
    row["kind"] = Kind(row["kind"])
    row["persistence"] = Persistence(row["persistence"])
    row["identity"] = ReplicaIdentity(row["identity"])
    for name in ("columns", "generated", "virtual", "key", "identity_columns", "children"):
        row[name] = tuple(row[name])
    return TableInfo(**row)
