"""The changes of one table between two positions of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import LogError, SchemaError
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Offset, Relation
from tailrace.spark.planning import decode_pieces
from tailrace.spark.selection import Selection

CHANGES_MAX: Final = 5_000_000
"""More changes than these are not folded in memory: the stream is too far behind."""


def changes_between(
    reader: Reader, after: Offset, upto: Offset, *, oid: int, selection: Selection
) -> TableChanges | None:
    """The changes of one table in `(after, upto]`, all in one shape; None if there are none.

    Raises SchemaError(retry=True) if the table has changed its shape there, LogError(retry=True)
    if there are too many changes.
    """
    runs = list(_runs(reader, after, upto, oid, selection))
    if not runs:
        return None
    relation = runs[-1].relation
    if any(run.relation.columns != relation.columns for run in runs):
        raise SchemaError(
            f"{relation.qualified} has changed its shape just now",
            hint="compare it again when the stream has taken up the new shape",
            retry=True,
        )
    return TableChanges(relation, pa.concat_tables(run.rows for run in runs).combine_chunks())


def _runs(
    reader: Reader, after: Offset, upto: Offset, oid: int, selection: Selection
) -> Iterator[TableChanges]:
    def wanted(relation: Relation) -> bool:
        return relation.oid == oid

    count = 0
    planned = pieces(reader, after, upto, wanted=wanted)
    for run in decode_pieces(reader.store, planned, wanted, selection.read_columns):
        count += run.rows.num_rows
        if count > CHANGES_MAX:
            raise LogError(
                f"over {CHANGES_MAX} changes of {run.relation.qualified} are not delivered yet",
                hint="let the pipeline catch up first",
                retry=True,
            )
        yield selection.apply(run)
