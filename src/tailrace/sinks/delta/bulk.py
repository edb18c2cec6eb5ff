"""A whole table written piece by piece in one commit, with the embedded library, whichever engine
writes the batches: it takes a stream of rows, and so needs memory for a piece only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from tailrace.sinks.conform import conform
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.embedded import commit_properties, execute
from tailrace.sinks.delta.merge import Update
from tailrace.sinks.delta.target import Target

ERRORS: Final = (DeltaError, OSError)
"""What it raises if a commit fails."""


class Pieces:
    """Rows as a stream of Arrow batches of one schema.

    The library reports only the text of an error that comes out of the stream.
    """

    def __init__(self, schema: pa.Schema, rows: Iterable[pa.Table]) -> None:
        self._schema = schema
        self._rows = rows
        self._failure: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        """To be read once."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for part in _ahead(iter(self._rows)):
                yield from conform(part, self._schema).to_batches()
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def own_failure(self) -> Iterator[None]:
        """Let the error of the stream itself come out of the block, not the library's report."""
        try:
            yield
        except ERRORS:
            if self._failure is not None:
                raise self._failure from None
            raise


def _ahead(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same parts, each made by a thread of its own while the one before it is written.

    The library asks for rows from its own threads, where nothing else of it may be called.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="tailrace-read") as pool:
        coming = pool.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = pool.submit(next, parts, None)
            yield part


@dataclass(frozen=True, slots=True)
class LoadClauses:
    """A MERGE of pieces `s` into a table `t`: what matches is updated as `matched` says, the other
    rows of `s` are inserted; of the rest of `t` those that are `undone` go, others are updated.
    """

    condition: str
    matched: Update
    inserts: dict[str, str]
    undone: str
    rest: Update


def replace_all(target: Target, pieces: Pieces, commit: Commit, *, partition_by: list[str]) -> None:
    """Replace the rows, and the table's columns and partitions by those given."""
    with pieces.own_failure():
        write_deltalake(
            target.table,
            pieces.reader(),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=partition_by or None,
            commit_properties=commit_properties(commit),
        )


def add_all(target: Target, pieces: Pieces, commit: Commit) -> None:
    """Add the rows, which have the target's columns in their order."""
    with pieces.own_failure():
        write_deltalake(
            target.table,
            pieces.reader(),
            mode="append",
            commit_properties=commit_properties(commit),
        )


def replace_some(target: Target, pieces: Pieces, commit: Commit, *, where: str) -> None:
    """Let the rows take the place of those that meet a condition, which they meet themselves."""
    with pieces.own_failure():
        write_deltalake(
            target.table,
            pieces.reader(),
            mode="overwrite",
            predicate=where,
            commit_properties=commit_properties(commit),
        )


def merge_all(target: Target, clauses: LoadClauses, pieces: Pieces, commit: Commit) -> None:
    """Merge the pieces. Unlike the others it holds one side of the join in memory."""
    merger = target.table.merge(
        pieces.reader(),
        clauses.condition,
        source_alias="s",
        target_alias="t",
        commit_properties=commit_properties(commit),
    )
    merger.when_matched_update(clauses.matched.updates, clauses.matched.where)
    merger.when_not_matched_insert(clauses.inserts)
    merger.when_not_matched_by_source_delete(clauses.undone)
    merger.when_not_matched_by_source_update(clauses.rest.updates, clauses.rest.where)
    with pieces.own_failure():
        execute(merger, target, commit)
