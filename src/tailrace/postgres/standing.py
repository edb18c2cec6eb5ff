"""How a table stands in the catalog, to find out what has changed its rows without being streamed.

Postgres streams rows as they are written. It does not stream the rows that a partition brings along
when it is attached, nor those that vanish when one is detached, dropped or truncated; nor values
that DDL gives to rows that exist: the default of a new column, another type, a column under the
name of another, another label of an enum, another attribute of a composite. Nor can a target take
rows under another key than it has. All of these leave traces in the catalog, which two looks at it
show, together with the shapes in which rows were streamed between the two: here is the comparison.
It may take something harmless for such a change, a TRUNCATE of all partitions for one, but not the
other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import psycopg

from tailrace.model import PgType, Relation, decimal_size
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.quote import qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.trigger_traces import Traces

_FORMER_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class StandingColumn:
    """A column that is streamed. `is_filled_in` if rows from before it was added have a value that
    is not stored in them (pg_attribute.atthasmissing). `version` is another one after each DDL that
    touches the column.
    """

    number: int
    name: str
    type_oid: int
    typmod: int
    is_filled_in: bool
    version: int


@dataclass(frozen=True, slots=True)
class StandingLeaf:
    """A table that holds rows itself: a partition, or the table if it has none.

    `link` is another one each time that the partition, or one above it, is attached; empty in looks
    from before it was looked at.
    """

    oid: int
    schema: str
    name: str
    filenode: int
    link: str = ""

    @property
    def qualified(self) -> str:
        """`schema.name`."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Standing:
    """One look at one table. `key` is by what its rows are known downstream. `makeup` is what the
    text of a value depends on beside it, each as an oid and a hash: the labels of the enums and the
    attributes of the composites that its columns are made of. `former` are partitions that earlier
    looks have shown and this one does not, the last ones. `triggers` only while triggers capture
    the table, and not in looks from before they were looked at.
    """

    oid: int
    name: str
    is_partitioned: bool
    columns: tuple[StandingColumn, ...]
    leaves: tuple[StandingLeaf, ...]
    key: tuple[str, ...] = ()
    makeup: tuple[tuple[int, int], ...] = ()
    former: tuple[int, ...] = field(default=(), compare=False)
    triggers: Traces | None = None

    @property
    def leaf_oids(self) -> frozenset[int]:
        """The partitions of this look and of earlier ones."""
        return frozenset([*self.former, *(leaf.oid for leaf in self.leaves)])

    def after(self, before: Standing) -> Standing:
        """The same look, with what is known from the one before it."""
        gone = sorted(before.leaf_oids - {leaf.oid for leaf in self.leaves})
        return replace(self, former=tuple(gone[-_FORMER_MAX:]))

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        triggers = value.get("triggers")
        return cls(
            oid=value["oid"],
            name=value["name"],
            is_partitioned=value["is_partitioned"],
            columns=tuple(StandingColumn(**column) for column in value["columns"]),
            leaves=tuple(StandingLeaf(**leaf) for leaf in value["leaves"]),
            key=tuple(value["key"]),
            makeup=tuple((part, made_of) for part, made_of in value["makeup"]),
            former=tuple(value.get("former", ())),
            triggers=None if triggers is None else tuple((oid, trace) for oid, trace in triggers),
        )


# One statement, so that columns and files are of one moment. Not pg_partition_tree: it locks every
# partition, and so waits for whoever alters one. The value that a new column has in older rows is
# kept with the partitions, not with their root.
_STANDINGS: Final = """
WITH RECURSIVE tree (root, oid, link) AS (
    SELECT asked, asked, '' FROM unnest(%s::oid[]) AS asked
     UNION ALL
    SELECT tree.root, i.inhrelid, format('%%s %%s', tree.link, i.xmin)
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
), leaf AS (
    SELECT tree.root, c.oid, n.nspname, c.relname, c.relfilenode, tree.link
      FROM tree
      JOIN pg_class AS c ON c.oid = tree.oid AND c.relkind <> 'p'
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
), filled AS (
    SELECT DISTINCT leaf.root, a.attname
      FROM leaf JOIN pg_attribute AS a ON a.attrelid = leaf.oid AND a.atthasmissing
)
SELECT c.oid::bigint, n.nspname || '.' || c.relname, c.relkind = 'p', columns.*, leaves.*
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
    SELECT array_agg(a.attnum::int ORDER BY a.attnum),
           array_agg(a.attname::text ORDER BY a.attnum),
           array_agg(a.atttypid::bigint ORDER BY a.attnum),
           array_agg(a.atttypmod ORDER BY a.attnum),
           array_agg(EXISTS (SELECT FROM filled
                              WHERE filled.root = c.oid AND filled.attname = a.attname)
                     ORDER BY a.attnum),
           array_agg(a.xmin::text::bigint ORDER BY a.attnum)
      FROM pg_attribute AS a
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 ) AS columns
 CROSS JOIN LATERAL (
    SELECT array_agg(leaf.oid::bigint ORDER BY leaf.oid),
           array_agg(leaf.nspname::text ORDER BY leaf.oid),
           array_agg(leaf.relname::text ORDER BY leaf.oid),
           array_agg(leaf.relfilenode::bigint ORDER BY leaf.oid),
           array_agg(leaf.link ORDER BY leaf.oid)
      FROM leaf WHERE leaf.root = c.oid
 ) AS leaves
 WHERE c.oid IN (SELECT root FROM tree)
 ORDER BY c.oid
"""


# A label keeps its oid when it is renamed. Types may be inside of arrays, domains, ranges and rows.
_MAKEUP: Final = """
WITH RECURSIVE used (root, oid) AS (
    SELECT a.attrelid, a.atttypid
      FROM pg_attribute AS a
     WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
       AND a.attgenerated = ''
     UNION
    SELECT used.root, inner_type.oid
      FROM used
      JOIN pg_type AS t ON t.oid = used.oid
     CROSS JOIN LATERAL (
        SELECT unnest(ARRAY[t.typelem, t.typbasetype])
         UNION ALL
        SELECT r.rngsubtype FROM pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
         UNION ALL
        SELECT a.atttypid FROM pg_attribute AS a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
     ) AS inner_type (oid)
     WHERE inner_type.oid <> 0
)
SELECT used.root::bigint, e.oid::bigint, hashtextextended(e.enumlabel::text, 0)
  FROM used JOIN pg_enum AS e ON e.enumtypid = used.oid
 UNION ALL
SELECT used.root::bigint, t.typrelid::bigint, hashtextextended(string_agg(
           format('%%s %%s', a.attnum, a.atttypid), ',' ORDER BY a.attnum), 0)
  FROM used
  JOIN pg_type AS t ON t.oid = used.oid
  JOIN pg_attribute AS a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY used.root, t.typrelid
 ORDER BY 1, 2
"""


def read_standings(conn: Connection, oids: Sequence[int]) -> list[Standing]:
    """How those of the tables stand that still exist."""
    keys = {table.oid: table.row_key for table in read_tables(conn, oids)}
    makeup: dict[int, list[tuple[int, int]]] = {}
    for root, part, made_of in conn.execute(_MAKEUP, (list(oids),)):
        makeup.setdefault(root, []).append((part, made_of))
    return [
        Standing(
            oid=oid,
            name=name,
            is_partitioned=is_partitioned,
            columns=tuple(map(StandingColumn, *(part or () for part in parts[:6]))),
            leaves=tuple(map(StandingLeaf, *(part or () for part in parts[6:]))),
            key=keys[oid],
            makeup=tuple(makeup.get(oid, ())),
        )
        for oid, name, is_partitioned, *parts in conn.execute(_STANDINGS, (list(oids),))
        if oid in keys
    ]


def unstreamed(conn: Connection, before: Standing, now: Standing) -> str:
    """What has changed rows between two looks without being streamed, in words; empty if nothing.

    A table under another name counts: what was delivered under the old one is not there under the
    new one.
    """
    if before.name != now.name:
        return f"it was {before.name} before"
    if now.is_partitioned and (reason := _partitions(conn, before.leaves, now.leaves)):
        return reason
    if {*before.key} != {*now.key}:
        was, is_now = (", ".join(look.key) or "none" for look in (before, now))
        return f"its key was {was} and is now {is_now}"
    if {part for part, _ in {*before.makeup} - {*now.makeup}} & {part for part, _ in now.makeup}:
        return "a type that its columns are made of was altered"
    is_rewritten = [leaf.filenode for leaf in before.leaves] != [x.filenode for x in now.leaves]
    return next(_columns(before.columns, now.columns, is_rewritten=is_rewritten), "")


def _partitions(
    conn: Connection, before: Sequence[StandingLeaf], now: Sequence[StandingLeaf]
) -> str:
    was, is_now = ({leaf.oid: leaf for leaf in leaves} for leaves in (before, now))
    for leaf in before:
        if leaf.oid not in is_now:
            return f"partition {leaf.qualified} was detached or dropped"
        if leaf.filenode != is_now[leaf.oid].filenode:
            return f"partition {leaf.qualified} was truncated or rewritten"
        if leaf.link and leaf.link != is_now[leaf.oid].link:
            return f"partition {leaf.qualified} was detached for a while"
    for leaf in now:
        if leaf.oid not in was and not _has_never_held_rows(conn, leaf):
            return f"partition {leaf.qualified} was added and may have held rows before"
    return ""


def _has_never_held_rows(conn: Connection, leaf: StandingLeaf) -> bool:
    """As far as can be told: a new table's file has the number of its oid, until the table is
    truncated or rewritten (heap_create). Deletes are streamed, so nothing can be missing then.
    """
    if leaf.filenode != leaf.oid:
        return False
    query = statement("SELECT NOT EXISTS (SELECT FROM {})", qualified(leaf.schema, leaf.name))
    try:
        return conn.execute(query).fetchone() == (True,)
    except psycopg.errors.InsufficientPrivilege:
        return False


def _columns(
    before: Sequence[StandingColumn], now: Sequence[StandingColumn], *, is_rewritten: bool
) -> Iterator[str]:
    was = {column.number: column for column in before}
    names = {column.name for column in before}
    for column in now:
        older = was.get(column.number)
        if older is None and (column.is_filled_in or is_rewritten):
            yield f"column {column.name} was added, and older rows have got a value in it"
        elif older is None and column.name in names:
            yield f"column {column.name} was dropped and added again"
        elif older is not None and older.name != column.name:
            yield f"column {older.name} was renamed to {column.name}"
        elif older is not None and is_rewritten and older.version != column.version:
            yield f"column {column.name} was altered, and its values were rewritten"
        elif older is not None and not _is_alike(older, column):
            yield f"column {column.name} has another type"


_TEXTS: Final = {PgType.TEXT, PgType.VARCHAR}


def _is_alike(one: StandingColumn, other: StandingColumn) -> bool:
    """Whether rows that were not rewritten have the same values in both, typed alike downstream."""
    oids = {one.type_oid, other.type_oid}
    if oids == {PgType.NUMERIC}:
        # Without its size, or with more digits, a number is a text from then on.
        return bool(decimal_size(one.typmod)) == bool(decimal_size(other.typmod))
    return len(oids) == 1 or oids <= _TEXTS


def passed_through(before: Standing, now: Standing, shape: Relation) -> str:
    """What a shape in which rows were streamed says that two looks around it do not show, in words;
    empty if nothing.

    Columns come in the order of their numbers, and new ones have higher numbers. So between the two
    looks a table has the columns of the first, without some that the second has no more, and then
    some of those that only the second has, from the first of them on. Anything else was renamed or
    dropped before anybody looked, and its values may stand under another name now.
    """
    if shape.qualified not in (before.name, now.name):
        return f"it was {shape.qualified} for a while"
    staying = {column.number: column for column in now.columns}
    numbers = {column.number for column in before.columns}
    seen = [(column.name, column.type_oid) for column in shape.columns]
    place = 0
    for column in before.columns:
        types = {column.type_oid, staying.get(column.number, column).type_oid}
        if place < len(seen) and seen[place][0] == column.name and seen[place][1] in types:
            place += 1
        elif column.number in staying:
            return f"column {column.name} was another one for a while"
    added = [(each.name, each.type_oid) for each in now.columns if each.number not in numbers]
    for name, type_oid in seen[place:]:
        if not added or added.pop(0) != (name, type_oid):
            return f"column {name} came and went"
    return ""
