"""Changes into a lake of plain Delta tables, each applied exactly once.

Invariant: the commit that changes a table's rows also records the batch's sequence as the
stream's transaction in that table. A sequence that is recorded, or older than the recorded one,
is not written again; two writers that race with the same sequence cannot both commit. The record
outlives checkpoints and Spark's own state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import SinkError, TargetLost
from tailrace.failpoint import failpoint
from tailrace.model import Relation
from tailrace.sinks.columns import Mode
from tailrace.sinks.conform import widen
from tailrace.sinks.delta.append import AppendForm
from tailrace.sinks.delta.bulk import ERRORS
from tailrace.sinks.delta.commit import Commit, app_id
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.form import Form
from tailrace.sinks.delta.history import HistoryForm
from tailrace.sinks.delta.lake import Lake
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.soft import SoftDeleteForm
from tailrace.sinks.delta.sync import sync_commits
from tailrace.sinks.delta.target import Target
from tailrace.sinks.delta.trouble import lake_trouble
from tailrace.sinks.delta.upkeep import Upkeep
from tailrace.sinks.delta.upsert import UpsertForm
from tailrace.sinks.side_by_side import write_tables
from tailrace.sinks.sink import Batch, Holds, Load

_TABLES_AT_ONCE: Final = 4
_UNSUPPORTED: Final = "Unsupported table features"
"""How the embedded library begins when it refuses a table; the error is of no class of its own."""

logger = logging.getLogger(__name__)


class DeltaSink:
    """A lake below one path: a directory, or the URL of a bucket's folder."""

    def __init__(self, path: str, *, engine: Engine, options: DeltaOptions | None = None) -> None:
        self._options = options or DeltaOptions()
        self._form = _form(engine, self._options)
        self._lake = Lake(path, self._form, self._options)
        self._upkeep = Upkeep(engine, self._options)
        self._errors: tuple[type[Exception], ...] = (*engine.errors, *ERRORS)
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="tailrace-delta")

    @property
    def holds(self) -> Holds:
        """By its mode."""
        return self._options.mode.holds

    def prepare(self, relation: Relation) -> None:
        """Make an empty lake table, or see that the one that is there can take the relation's
        rows.
        """
        self._lake.check(self._lake.open_or_make(relation), relation)

    def write(self, batch: Batch) -> None:
        """Write the tables side by side; those that can be written are, also if another one
        fails.
        """
        write_tables(self._pool, batch, self._write_table)

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Let the table hold these rows; older ones stay only where the mode keeps them."""
        # The rows come once, so nothing may come between.
        self._upkeep.wait(self._lake.uri(load.relation))
        target = self._lake.open_or_make(load.relation)
        commit = Commit.of_load(load)
        if not target.has(commit):
            target = self._lake.fit_for_load(target, load.relation)
            failpoint("delta.after_evolve")
            error = self._attempt(
                commit, target, lambda: self._form.load(load, rows, target, commit)
            )
            if error is not None:
                raise _refused(commit, target, error) from error
        sync_commits(target.uri, commit)
        # A base comes in the order of the source's files, not of the keys.
        self._upkeep.note(target, self._options.clusters(load.relation), is_loaded=True)

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What the tables themselves have recorded."""
        found = {}
        for relation in relations:
            target = self._lake.open(relation)
            recorded = target.recorded(app_id(stream)) if target else None
            if recorded is not None:
                found[relation.qualified] = recorded
        return found

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """Those that more has happened to than that they were made."""
        found = {relation.qualified: self._lake.open(relation) for relation in relations}
        return {name for name, target in found.items() if target and not target.is_new}

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
        self._upkeep.close()

    def _write_table(self, batch: Batch, changes: TableChanges) -> None:
        relation, commit = changes.relation, Commit.of(batch)
        target = self._open(batch, relation)
        if target.has(commit):
            logger.info(
                "batch already applied table=%s sequence=%d", relation.qualified, batch.sequence
            )
        else:
            target = self._apply(changes, target, commit)
        # Also what an earlier process has applied: it may have died before it got here.
        sync_commits(target.uri, commit)
        self._upkeep.note(target, self._options.clusters(relation))

    def _apply(self, changes: TableChanges, target: Target, commit: Commit) -> Target:
        """Commit the changes; once more if something else was faster, such as the upkeep."""
        for is_last in (False, True):
            target = self._lake.fit_for_changes(target, changes.relation)
            failpoint("delta.after_evolve")
            fitting = replace(changes, rows=widen(changes.rows, target.schema))
            write = partial(self._form.write, fitting, target, commit)
            error = self._attempt(commit, target, write)
            if error is None:
                return target
            now = self._lake.open(changes.relation)
            if is_last or now is None or now.next_version == target.next_version:
                raise _refused(commit, target, error) from error
            target = now
        raise AssertionError("the last attempt has an outcome")

    def _attempt(
        self, commit: Commit, target: Target, write: Callable[[], None]
    ) -> Exception | None:
        """Commit; the error, if the commit is not in the table then."""
        try:
            failpoint("delta.before_commit")
            write()
            failpoint("delta.after_commit")
        except self._errors as error:
            # A writer that lost the race to one with the same batch has nothing left to do.
            now = Target.open(target.uri)
            return None if now is not None and now.has(commit) else error
        return None

    def _open(self, batch: Batch, relation: Relation) -> Target:
        target = self._lake.open(relation)
        known = relation.qualified in batch.known_tables
        if known and (target is None or target.recorded(app_id(batch.stream)) is None):
            state = "is gone" if target is None else f"has no record of stream {batch.stream}"
            raise TargetLost(
                f"the lake table at {self._lake.uri(relation)} {state}, but rows were delivered to"
                " it",
                hint=f"put the table back, or `tailrace snapshot {relation.qualified}` to deliver"
                " it anew",
            )
        return target or self._lake.open_or_make(relation)


def _refused(commit: Commit, target: Target, error: Exception) -> SinkError:
    if _UNSUPPORTED in str(error):
        features = ", ".join(target.table.protocol().writer_features or ())
        return SinkError(
            f"the lake table at {target.uri} has features that deltalake cannot write: {features}",
            hint="set up engine: delta-spark, or deliver the table anew to another lake path",
        )
    message = f"the lake table at {target.uri} did not take batch {commit.version}"
    return lake_trouble(message, error)


def _form(engine: Engine, options: DeltaOptions) -> Form:
    match options.mode:
        case Mode.APPEND:
            return AppendForm(engine)
        case Mode.HISTORY:
            return HistoryForm(engine)
        case Mode.UPSERT if options.soft_delete:
            return SoftDeleteForm(engine, options)
        case Mode.UPSERT:
            return UpsertForm(engine, options)
