"""A run of frames to typed changes, by table and shape.

A pure function of its arguments: it reads no catalog, no clock and no store, so that any part of
the log can be decoded anywhere, again, with the same result. All work is by the column over many
rows; no Python runs per row.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.decode.changes import Changes, list_changes
from tailrace.decode.corrupt import corrupt
from tailrace.decode.origins import origins_of
from tailrace.decode.rows import read_rows
from tailrace.decode.runs import Run, split_into_runs
from tailrace.decode.table import build_table
from tailrace.decode.transactions import OpenTransaction
from tailrace.decode.types import change_schema, wanted_columns
from tailrace.model import Offset, Relation
from tailrace.postgres.frames import Frames

# A piece of a run is what is decoded at once. Small enough for its cursors to stay in the
# processor's cache, large enough for the fixed cost of a numpy or Arrow call not to count; the
# cells bound the memory of wide tables.
_PIECE_ROWS_MAX: Final = 32_768
_PIECE_CELLS_MAX: Final = 1 << 20
_PIECE_BYTES_MAX: Final = 1 << 26

# Arrow's string and binary arrays count bytes in 31 bits. Postgres' own limit for one frame is half
# of that.
_FRAME_BYTES_MAX: Final = (1 << 31) - 64


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Successive changes of one table under one shape, in offset order; columns as `change_schema`
    says.
    """

    relation: Relation
    rows: pa.Table


def decode(
    frames: Frames,
    *,
    initial: Mapping[int, Relation],
    versions: Mapping[bytes, Relation],
    after: Offset,
    upto: Offset,
    tables: Container[str] | None = None,
    columns: Collection[str] | None = None,
    open_transaction: OpenTransaction | None = None,
) -> list[TableChanges]:
    """The changes in `(after, upto]`, typed, ordered by the first change of each entry.

    `initial` gives the shape of each table, by oid, until a Relation frame of that table comes;
    `versions` what is known of a Relation frame beyond its own bytes. `tables` (`schema.name`) and
    `columns` leave out the others; a column that a shape does not have is no error. Frames are
    whole transactions, unless `open_transaction` says of which one they are a part. Raises
    SegmentCorrupt, and nothing else, for frames that are damaged.
    """
    tags = frames.tags
    changes = list_changes(frames, tags, open_transaction).between(after, upto)
    if not len(changes):
        return []
    runs = split_into_runs(frames, tags, changes, initial=initial, versions=versions, tables=tables)
    return [TableChanges(run.relation, _decode_run(frames, changes, run, columns)) for run in runs]


def piece_limits(relation: Relation) -> tuple[int, int]:
    """How many rows of a table, and about how many bytes, are decoded at once."""
    cells_max = _PIECE_CELLS_MAX // max(len(relation.columns), 1)
    return max(min(_PIECE_ROWS_MAX, cells_max), 1), _PIECE_BYTES_MAX


def _decode_run(
    frames: Frames, changes: Changes, run: Run, columns: Collection[str] | None
) -> pa.Table:
    schema = change_schema(run.relation, columns)
    asked = set(wanted_columns(run.relation, columns))
    wanted = [column in asked for column in run.relation.columns]
    return pa.concat_tables(
        build_table(
            schema,
            read_rows(frames, changes.frame[places], wanted),
            changes,
            places,
            origin=origins_of(frames, changes.frame[places]),
        )
        for places in _pieces(frames, changes, run)
    )


def _pieces(frames: Frames, changes: Changes, run: Run) -> Iterator[NDArray[np.intp]]:
    """The run's changes, cut into pieces of bounded rows, cells and bytes."""
    rows_max, bytes_max = piece_limits(run.relation)
    ends = frames.offsets[changes.frame[run.places] + 1]
    first = 0
    while first < len(run.places):
        frame = int(changes.frame[run.places[first]])
        begin = int(frames.offsets[frame])
        if ends[first] - begin > _FRAME_BYTES_MAX:
            raise corrupt(frames, frame, "more bytes than Postgres can send")
        within = int(np.searchsorted(ends, begin + bytes_max, side="right"))
        last = min(first + rows_max, max(within, first + 1))
        yield run.places[first:last]
        first = last
