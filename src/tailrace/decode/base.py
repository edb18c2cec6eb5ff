"""The rows of a base to typed changes: inserts at the base's position, numbered as they stand.

Invariant: a row has the same columns, whether it comes from a base or from the stream; both go
through the same casts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from tailrace.decode.changes import Changes
from tailrace.decode.decoder import TableChanges, piece_limits
from tailrace.decode.origins import origins
from tailrace.decode.rows import Rows
from tailrace.decode.table import build_table
from tailrace.decode.transactions import Transactions
from tailrace.decode.types import change_schema, wanted_columns
from tailrace.model import Lsn, Origin, Relation
from tailrace.postgres.binaries import text_offsets
from tailrace.postgres.copy_lines import split_lines, unescaped
from tailrace.postgres.pgoutput import Tag


def decode_base(
    lines: pa.BinaryArray,
    relation: Relation,
    *,
    position: Lsn,
    taken_ts_us: int,
    first_ordinal: int = 0,
    columns: Collection[str] | None = None,
) -> Iterator[TableChanges]:
    """The rows of successive lines, the first of which is number `first_ordinal` of the base, in
    pieces of bounded size; raises SegmentCorrupt.
    """
    schema = change_schema(relation, columns)
    asked = set(wanted_columns(relation, columns))
    wanted = [column in asked for column in relation.columns]
    for first, piece in _pieces(lines, *piece_limits(relation)):
        changes = _inserts(len(piece), first_ordinal + first, relation, position, taken_ts_us)
        origin = origins(Origin.SNAPSHOT, len(piece))
        rows = build_table(
            schema, _rows(piece, wanted), changes, np.arange(len(piece)), origin=origin
        )
        yield TableChanges(relation, rows)


def _pieces(
    lines: pa.BinaryArray, rows_max: int, bytes_max: int
) -> Iterator[tuple[int, pa.BinaryArray]]:
    """The lines, cut into pieces of bounded rows and bytes, each with the place of its first."""
    if not len(lines):
        return
    offsets = text_offsets(lines)
    first = 0
    while first < len(lines):
        within = int(np.searchsorted(offsets, offsets[first] + bytes_max, side="right")) - 1
        last = min(first + rows_max, max(within, first + 1), len(lines))
        yield first, lines[first:last]
        first = last


def _rows(lines: pa.BinaryArray, wanted: list[bool]) -> Rows:
    data, cells = split_lines(lines, len(wanted))
    data, cells = unescaped(data, [each for each, keep in zip(cells, wanted, strict=True) if keep])
    tag = np.full(len(lines), Tag.INSERT, dtype=np.uint8)
    return Rows(data, tag, cells, np.empty(0, dtype=np.intp), [])


def _inserts(
    count: int, first_ordinal: int, relation: Relation, position: Lsn, taken_ts_us: int
) -> Changes:
    """As if one transaction that ends at the base's position had inserted them."""
    values = (position, taken_ts_us, 0, first_ordinal)
    transaction = Transactions(*(np.array([value], dtype=np.int64) for value in values))
    nothing = np.zeros(count, dtype=np.intp)
    oid = np.full(count, relation.oid, dtype=np.int64)
    return Changes(nothing, oid, first_ordinal + np.arange(count), nothing, transaction)
