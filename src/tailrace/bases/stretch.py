"""A table cut into stretches: runs of pages that are read side by side.

Rows are addressed by ctid, so every row is in one stretch. The last one of each partition is open:
whatever the size was when it was asked for, no page is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from tailrace.postgres.session import Connection
from tailrace.postgres.table_shape import Leaf, TableShape

PAGES_MIN: Final = 1024
PAGES_MAX: Final = 8192
"""A stretch is what is read again after a failure, and what progress is counted in."""

STRETCHES_WANTED: Final = 32


@dataclass(frozen=True, slots=True)
class Stretch:
    """Pages `first` up to, and without, `end` of one leaf; None means to the end."""

    oid: int
    number: int
    leaf: Leaf
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How a table is going to be read. `row_estimate` is what the last ANALYZE thought."""

    shape: TableShape
    stretches: tuple[Stretch, ...]
    row_estimate: int


_SIZES = """
SELECT c.oid::bigint,
       (pg_relation_size(c.oid, 'main') / current_setting('block_size')::int)::bigint,
       greatest(c.reltuples, 0)::bigint
  FROM pg_class AS c
 WHERE c.oid = ANY (%s::oid[])
"""


def plan_table(conn: Connection, shape: TableShape) -> TablePlan:
    """Cut a table so that a few workers are busy to the end, and none has too little to do."""
    sizes = {
        oid: (pages or 0, rows)
        for oid, pages, rows in conn.execute(_SIZES, ([leaf.oid for leaf in shape.leaves],))
    }
    page_count = sum(pages for pages, _ in sizes.values())
    size = min(max(page_count // STRETCHES_WANTED, PAGES_MIN), PAGES_MAX)
    bounds = [
        (leaf, first, end)
        for leaf in shape.leaves
        for first, end in _bounds(sizes.get(leaf.oid, (0, 0))[0], size)
    ]
    stretches = tuple(
        Stretch(shape.relation.oid, number, *bound) for number, bound in enumerate(bounds)
    )
    return TablePlan(shape, stretches, sum(rows for _, rows in sizes.values()))


def _bounds(page_count: int, size: int) -> Iterator[tuple[int, int | None]]:
    first = 0
    while page_count - first > size:
        yield first, first + size
        first += size
    yield first, None


def copy_query(stretch: Stretch, columns: tuple[str, ...]) -> sql.Composed:
    """The COPY that reads a stretch, columns in the order of the relation."""
    where = sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({stretch.first},0)"))
    if stretch.end is not None:
        where += sql.SQL(" AND ctid < {}::tid").format(sql.Literal(f"({stretch.end},0)"))
    return sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.Identifier(stretch.leaf.schema, stretch.leaf.name),
        where,
    )
