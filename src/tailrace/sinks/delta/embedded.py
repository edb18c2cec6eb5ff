"""Rows written by the embedded Delta library, in this process: no Java, and quick for small
batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.table import TableMerger

from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.merge import GONE, Merge
from tailrace.sinks.delta.target import FILE_BYTES, Target

_SORT_BYTES: Final = 256 << 20


class EmbeddedEngine:
    """The `deltalake` package. It works on the version that `target` was opened at."""

    is_local = True

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The library's own errors, and those of the files below."""
        return (DeltaError, OSError)

    def append(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        """Add rows."""
        _write(target, rows, commit, "append")

    def overwrite(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        """Replace all rows."""
        _write(target, rows, commit, "overwrite")

    def merge(self, target: Target, merge: Merge, commit: Commit) -> None:
        """Update, delete and insert."""
        merger = target.table.merge(
            merge.source,
            merge.condition,
            source_alias="s",
            target_alias="t",
            commit_properties=commit_properties(commit),
        )
        if merge.closes is None:
            merger.when_matched_delete(f"s.{GONE}")
        else:
            merger.when_matched_update(merge.closes, f"s.{GONE}")
        if merge.updates is not None:
            merger.when_matched_update(merge.updates, f"NOT s.{GONE}")
        merger.when_not_matched_insert(merge.inserts, f"NOT s.{GONE}")
        if merge.rest is not None:
            merger.when_not_matched_by_source_update(merge.rest.updates, merge.rest.where)
        execute(merger, target, commit)

    def compact(self, target: Target, cluster_by: Sequence[str]) -> None:
        """A sort spills to disk."""
        optimize = target.table.optimize
        if cluster_by:
            optimize.z_order(list(cluster_by), target_size=FILE_BYTES, max_spill_size=_SORT_BYTES)
        else:
            optimize.compact(target_size=FILE_BYTES)

    def vacuum(self, target: Target, retention: timedelta) -> None:
        """Also what killed writers have left, unless the table has files that the library does
        not know.
        """
        features = target.table.protocol().writer_features or []
        vacuum = partial(
            target.table.vacuum,
            int(retention / timedelta(hours=1)),
            full="deletionVectors" not in features,
        )
        # It is a commit, also if there is nothing to delete.
        if vacuum(dry_run=True):
            vacuum(dry_run=False)


def execute(merger: TableMerger, target: Target, commit: Commit) -> None:
    """Run a MERGE, and record it also if it has found nothing to do."""
    before = target.table.version()
    merger.execute()
    if target.table.version() == before:
        # The library has made no commit.
        _write(target, target.schema.empty_table(), commit, "append")


def _write(
    target: Target, rows: pa.Table, commit: Commit, mode: Literal["append", "overwrite"]
) -> None:
    properties = commit_properties(commit)
    if mode == "append":
        write_deltalake(target.table, rows, mode="append", commit_properties=properties)
    else:
        write_deltalake(target.table, rows, mode="overwrite", commit_properties=properties)


def commit_properties(commit: Commit) -> CommitProperties:
    """The record, as the library takes it."""
    return CommitProperties(
        custom_metadata={"userMetadata": commit.note},
        app_transactions=[Transaction(commit.app_id, commit.version)],
    )
