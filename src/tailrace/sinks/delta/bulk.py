"""A whole table written piece by piece in one commit, with the embedded library, whichever engine
writes the batches: it takes a stream of rows, and so needs memory for a piece only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.embedded import commit_properties
from tailrace.sinks.delta.target import Target

ERRORS: Final = (DeltaError, OSError)
"""What it raises if a commit fails."""


class Pieces:
    """Rows as a stream of Arrow batches of one schema.

    The library reports only the text of an error that comes out of the stream; `failure` has the
    error itself.
    """

    def __init__(self, schema: pa.Schema, rows: Iterable[pa.Table]) -> None:
        self._schema = schema
        self._rows = rows
        self.failure: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        """To be read once."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for part in self._rows:
                yield from part.select(self._schema.names).cast(self._schema).to_batches()
        except BaseException as error:
            self.failure = error
            raise


def replace_all(target: Target, pieces: Pieces, commit: Commit) -> None:
    """Replace the rows, and the table's columns by those of the pieces."""
    _write(target, pieces, commit, anew=True)


def add_all(target: Target, pieces: Pieces, commit: Commit) -> None:
    """Add the rows, which have the target's columns in their order."""
    _write(target, pieces, commit, anew=False)


def _write(target: Target, pieces: Pieces, commit: Commit, *, anew: bool) -> None:
    rows, record = pieces.reader(), commit_properties(commit)
    try:
        if anew:
            write_deltalake(
                target.table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=record,
            )
        else:
            write_deltalake(target.table, rows, mode="append", commit_properties=record)
    except ERRORS:
        if pieces.failure is not None:
            raise pieces.failure from None
        raise
