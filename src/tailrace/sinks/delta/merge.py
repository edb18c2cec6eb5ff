"""A fold as one MERGE, in the part of SQL that both engines read alike.

The source `s` has the lake table's columns as `c0`, `c1`, … in the table's order, a flag `gone`
for rows that are only keys to delete, and for each column of which values are kept a flag `k<n>`
beside `c<n>`. Names of the user's appear only as quoted identifiers of the target `t`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.sinks.delta.bounds import first_column_bounds, quote
from tailrace.sinks.fold import Fold

GONE: Final = "gone"


@dataclass(frozen=True, slots=True)
class Merge:
    """`updates` and `inserts` give for each quoted column of the target the expression of its new
    value.

    A matched row is deleted if `s.gone`, else updated; a source row that matches none is inserted
    unless `s.gone`.
    """

    source: pa.Table
    condition: str
    updates: dict[str, str]
    inserts: dict[str, str]


def merge_of(fold: Fold, columns: Sequence[str], key: Sequence[str]) -> Merge:
    """The MERGE that does what the fold says to a table with these columns."""
    keys = pa.concat_tables([fold.upserts.select(list(key)), fold.deletes])
    same = [f"t.{quote(name)} = s.c{columns.index(name)}" for name in key]
    bounds = first_column_bounds(keys, alias="t.")
    inserts = {quote(name): f"s.c{n}" for n, name in enumerate(columns)}
    kept = {
        quote(name): f"CASE WHEN s.k{columns.index(name)} THEN t.{quote(name)}"
        f" ELSE s.c{columns.index(name)} END"
        for name in fold.kept
    }
    return Merge(
        source=_source(fold, columns),
        condition=" AND ".join([*same, bounds] if bounds else same),
        updates={**inserts, **kept},
        inserts=inserts,
    )


def _source(fold: Fold, columns: Sequence[str]) -> pa.Table:
    upserts, deletes = fold.upserts.num_rows, fold.deletes.num_rows
    # The columns that a delete lacks become NULL.
    rows = pa.concat_tables([fold.upserts, fold.deletes], promote_options="default")
    source = rows.select(list(columns)).rename_columns([f"c{n}" for n in range(len(columns))])
    for name, mask in fold.kept.items():
        flags = np.concatenate([mask, np.zeros(deletes, dtype=np.bool_)])
        source = source.append_column(f"k{columns.index(name)}", pa.array(flags))
    gone = np.repeat([False, True], [upserts, deletes])
    return source.append_column(GONE, pa.array(gone))
