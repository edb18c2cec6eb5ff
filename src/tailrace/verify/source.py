"""The source's side: one table under one snapshot of Postgres, summed up by SQL in Postgres."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from tailrace.errors import SourceError
from tailrace.postgres.session import Connection, source_error
from tailrace.verify import expressions
from tailrace.verify.hashing import PROBE, SEED
from tailrace.verify.ranges import Bounds
from tailrace.verify.shape import ComparedColumn, Row, Shape
from tailrace.verify.sums import Cell, Sums
from tailrace.where import Predicate

_PAGES_PER_QUERY: Final = 8192

_TABLE: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'p',
       greatest(pg_relation_size(c.oid), (SELECT max(pg_relation_size(relid))
                                            FROM pg_partition_tree(c.oid::regclass)))
           / current_setting('block_size')::bigint,
       greatest(c.reltuples, 0)::bigint
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname || '.' || c.relname = %s AND c.relkind IN ('r', 'p')
"""

# The key is the primary key, else the index that the replica identity names.
_COLUMNS: Final = """
WITH RECURSIVE of_type (oid, base) AS (
    SELECT DISTINCT atttypid, atttypid FROM pg_attribute WHERE attrelid = %(oid)s
    UNION ALL
    SELECT of_type.oid, t.typbasetype FROM of_type JOIN pg_type AS t ON t.oid = of_type.base
     WHERE t.typbasetype <> 0
)
SELECT a.attname::text, b.base::bigint, NOT a.attnotnull, a.attgenerated <> '',
       array_position(i.indkey::int2[], a.attnum)
  FROM pg_attribute AS a
  JOIN LATERAL (SELECT base FROM of_type JOIN pg_type AS t ON t.oid = of_type.base
                 WHERE of_type.oid = a.atttypid AND t.typbasetype = 0) AS b ON true
  LEFT JOIN LATERAL (
      SELECT indkey FROM pg_index WHERE indrelid = a.attrelid AND (indisprimary OR indisreplident)
       ORDER BY indisprimary DESC LIMIT 1
  ) AS i ON true
 WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the catalog has it; `key_place` is where in the key it stands."""

    compared: ComparedColumn
    is_generated: bool
    key_place: int | None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the catalog has it; sizes are those of its largest partition."""

    oid: int
    schema: str
    name: str
    is_partitioned: bool
    page_count: int
    row_estimate: int
    columns: tuple[SourceColumn, ...]

    @property
    def qualified(self) -> str:
        """`schema.name`."""
        return f"{self.schema}.{self.name}"

    @property
    def rows(self) -> sql.Composed:
        """What to select from: of a table with children only its own rows, as they are streamed."""
        name = sql.Identifier(self.schema, self.name)
        return sql.SQL("{}" if self.is_partitioned else "ONLY {}").format(name)

    def shape(
        self,
        lake_columns: Collection[str],
        *,
        chosen: Collection[str] | None = None,
        own_key: Sequence[str] | None = None,
        is_hexed: bool = False,
    ) -> Shape:
        """The chosen columns, or all, those of the stream's own key or else of the table's first; a
        generated one only if the lake has it, for most publications leave it out.
        """
        compared = [
            column
            for column in self.columns
            if (chosen is None or column.compared.name in chosen)
            and (not column.is_generated or column.compared.name in lake_columns)
        ]
        places = self._key_places(own_key)
        key = [column.compared for column in compared if column.compared.name in places]
        key.sort(key=lambda column: places[column.name])
        others = [c.compared for c in compared if c.compared.name not in places]
        columns = (*key, *others)
        return Shape(columns, len(key) or len(columns), is_hexed=is_hexed)

    def _key_places(self, own_key: Sequence[str] | None) -> dict[str, int]:
        if own_key is not None:
            return {name: place for place, name in enumerate(own_key)}
        places = ((column.compared.name, column.key_place) for column in self.columns)
        return {name: place for name, place in places if place is not None}


def find_table(connection: Connection, qualified: str) -> SourceTable | None:
    """The table of that name, if there is one; raises SourceError."""
    try:
        found = connection.execute(_TABLE, (qualified,)).fetchone()
        if found is None:
            return None
        oid, schema, name, is_partitioned, page_count, row_estimate = found
        columns = connection.execute(_COLUMNS, {"oid": oid}).fetchall()
    except psycopg.Error as error:
        raise source_error(error) from error
    described = tuple(
        SourceColumn(ComparedColumn(column, type_oid, is_nullable), is_generated, place)
        for column, type_oid, is_nullable, is_generated, place in columns
    )
    return SourceTable(oid, schema, name, is_partitioned, page_count, row_estimate, described)


def hashes_hexed(connection: Connection) -> bool:
    """Whether texts are hashed as hexadecimal digits on this server; raises SourceError if it
    does not hash as we do.
    """
    probe, expected = PROBE
    query = "SELECT hashtextextended(%s, %s), current_setting('server_encoding')"
    row = connection.execute(query, (probe, SEED)).fetchone()
    assert row is not None
    if row[0] != expected:
        raise SourceError(
            "the server hashes texts in another way",
            hint="tables can only be compared on a server of little-endian byte order",
        )
    return row[1] not in ("UTF8", "SQL_ASCII")


class SourceSide:
    """One table; `where` leaves out rows. `on_rows` is told how many more have been read."""

    def __init__(
        self,
        connection: Connection,
        table: SourceTable,
        shape: Shape,
        *,
        where: Predicate | None = None,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._table = table
        self._shape = shape
        self._where = expressions.fulfils(where) if where else sql.SQL("true")
        self._on_rows = on_rows

    def ranges(self, bounds: Bounds) -> Sums:
        """Sum up the whole table by range."""
        sums = Sums.zero(bounds.range_count)
        for pages in self._pages():
            query = self._sum_up([expressions.range_number(self._shape, bounds)], pages)
            before = sums.row_count
            for number, count, total in self._fetch(query):
                sums.add_sum((number,), count, int(total))
            self._on_rows(sums.row_count - before)
        return sums

    def cells(self, bounds: Bounds, ranges: Sequence[int]) -> Mapping[Cell, tuple[int, int]]:
        """Sum up these ranges by cell."""
        shape = self._shape
        by = [expressions.range_number(shape, bounds), expressions.slot(shape)]
        found = self._fetch(self._sum_up(by, expressions.within(shape, bounds, ranges)))
        return {
            (number, slot): (count, int(total) & 0xFFFF_FFFF_FFFF_FFFF)
            for number, slot, count, total in found
        }

    def rows(self, bounds: Bounds, cells: Collection[Cell]) -> list[Row]:
        """The rows of some cells."""
        shape = self._shape
        slots: defaultdict[int, list[int]] = defaultdict(list)
        for number, slot in cells:
            slots[number].append(slot)
        # One test for the ranges, which an index may serve, and one for the cells.
        wanted = sql.Literal([number * 256 + slot for number, slot in sorted(cells)])
        query = sql.SQL(
            "SELECT {texts} FROM {rows} WHERE {where} AND {within}"
            " AND {range} * 256 + {slot} = ANY ({wanted})"
        ).format(
            texts=sql.SQL(", ").join(expressions.exact_text(c) for c in shape.columns),
            rows=self._table.rows,
            where=self._where,
            within=expressions.within(shape, bounds, sorted(slots)),
            range=expressions.range_number(shape, bounds),
            slot=expressions.slot(shape),
            wanted=wanted,
        )
        return self._fetch(query)

    def _sum_up(self, by: Sequence[sql.Composable], only: sql.Composable) -> sql.Composed:
        return sql.SQL(
            "SELECT {by}, count(*), sum({hash}) FROM {rows} WHERE {where} AND {only}"
            " GROUP BY {numbers}"
        ).format(
            by=sql.SQL(", ").join(by),
            hash=expressions.row_hash(self._shape),
            rows=self._table.rows,
            where=self._where,
            only=only,
            numbers=sql.SQL(", ").join(sql.SQL(str(n + 1)) for n in range(len(by))),
        )

    def _pages(self) -> Iterator[sql.Composable]:
        """The table by runs of its pages, the last one open, so that progress can be told."""
        starts = range(0, max(self._table.page_count, 1), _PAGES_PER_QUERY)
        for start in starts:
            first = sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({start},0)"))
            if start == starts[-1]:
                yield first if start else sql.SQL("true")
            else:
                after = sql.Literal(f"({start + _PAGES_PER_QUERY},0)")
                yield sql.SQL("{} AND ctid < {}::tid").format(first, after)

    def _fetch(self, query: sql.Composed) -> list[TupleRow]:
        try:
            return self._connection.execute(query).fetchall()
        except psycopg.Error as error:
            raise source_error(error) from error
