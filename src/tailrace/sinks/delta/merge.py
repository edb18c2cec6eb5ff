"""What happens to the rows of a lake table, as one MERGE in the part of SQL that both engines read
alike.

The source `s` has the lake table's columns as `c0`, `c1`, … in the table's order, a flag `gone`
for rows that are only keys to delete or to close, and for each column of which values are kept a
flag `k<n>` beside `c<n>`. Names of the user's appear only as quoted identifiers of the target `t`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.sinks.delta.bounds import first_column_bounds, quote
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Mask

GONE: Final = "gone"


@dataclass(frozen=True, slots=True)
class Update:
    """What happens to those of some rows of the target that have `where`."""

    where: str
    updates: dict[str, str]


@dataclass(frozen=True, slots=True)
class Merge:
    """Each of the clauses gives for quoted columns of the target the expression of their new
    value.

    A matched row is updated by `updates`; if `s.gone`, by `closes`, or deleted if there are none. A
    source row that matches none is inserted unless `s.gone`. `rest` is for rows of the target that
    no source row matches.
    """

    source: pa.Table
    condition: str
    inserts: dict[str, str]
    updates: dict[str, str] | None = None
    closes: dict[str, str] | None = None
    rest: Update | None = None


def upsert_merge(fold: Fold, columns: Sequence[str], key: Sequence[str]) -> Merge:
    """The MERGE that does what the fold says to a table with these columns."""
    keys = pa.concat_tables([fold.upserts.select(list(key)), fold.deletes])
    inserts = assignments(columns, columns)
    kept = {
        quote(name): f"CASE WHEN s.k{columns.index(name)} THEN t.{quote(name)}"
        f" ELSE s.c{columns.index(name)} END"
        for name in fold.kept
    }
    return Merge(
        source=merge_source(columns, fold.upserts, fold.deletes, fold.kept),
        condition=same_key(keys, columns),
        inserts=inserts,
        updates={**inserts, **kept},
    )


def assignments(names: Iterable[str], columns: Sequence[str]) -> dict[str, str]:
    """These columns, taken from the source."""
    return {quote(name): f"s.c{columns.index(name)}" for name in names}


def same_key(keys: pa.Table, columns: Sequence[str], *, bounded: bool = True) -> str:
    """The condition that a row of the target has the key of a source row; `keys` are all of the
    source's.

    Bounds would only be in the way of a MERGE that also looks at the rest of the target.
    """
    same = [f"t.{quote(name)} = s.c{columns.index(name)}" for name in keys.column_names]
    bounds = first_column_bounds(keys, alias="t.") if bounded else None
    return " AND ".join([*same, bounds] if bounds else same)


def merge_source(
    columns: Sequence[str], rows: pa.Table, gone: pa.Table, kept: Mapping[str, Mask]
) -> pa.Table:
    """The rows, and those that are gone, which may lack columns."""
    both = pa.concat_tables([rows, gone], promote_options="default")
    source = both.select(list(columns)).rename_columns([f"c{n}" for n in range(len(columns))])
    for name, mask in kept.items():
        flags = np.concatenate([mask, np.zeros(gone.num_rows, dtype=np.bool_)])
        source = source.append_column(f"k{columns.index(name)}", pa.array(flags))
    flags = np.repeat([False, True], [rows.num_rows, gone.num_rows])
    return source.append_column(GONE, pa.array(flags))
