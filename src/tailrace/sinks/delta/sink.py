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
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import SinkError, TailraceError
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
from tailrace.sinks.delta.place import table_uri
from tailrace.sinks.delta.soft import SoftDeleteForm
from tailrace.sinks.delta.sync import sync_to_last_record
from tailrace.sinks.delta.target import Target
from tailrace.sinks.delta.upsert import UpsertForm
from tailrace.sinks.evolution import evolved, reordered
from tailrace.sinks.shape import require_same_mode
from tailrace.sinks.sink import Batch, Load

_TABLES_AT_ONCE: Final = 4

logger = logging.getLogger(__name__)


class DeltaSink:
    """A lake below one path: a directory, or the URL of a bucket's folder."""

    def __init__(
        self, path: str, *, engine: Engine, mode: Mode = Mode.UPSERT, soft_delete: bool = False
    ) -> None:
        self._path = path
        self._form = _form(engine, mode, soft_delete=soft_delete)
        self._errors: tuple[type[Exception], ...] = (*engine.errors, *ERRORS)
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="tailrace-delta")

    def prepare(self, relation: Relation) -> None:
        """Make an empty lake table, or see that the one that is there can take the relation's
        rows.
        """
        schema = self._form.schema(relation)
        uri = table_uri(self._path, relation)
        target = Target.open(uri) or Target.create(uri, schema)
        evolved(target.shape, schema, relation)

    def write(self, batch: Batch) -> None:
        """Write the tables side by side; those that can be written are, also if another one
        fails.
        """
        tables = [changes for changes in batch.tables if changes.rows.num_rows]
        futures = [self._pool.submit(self._write_table, batch, changes) for changes in tables]
        errors = [error for future in futures if (error := future.exception()) is not None]
        # What needs a person comes before what may pass.
        errors.sort(key=lambda error: isinstance(error, TailraceError) and error.retry)
        if errors:
            raise errors[0]

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Let the table hold these rows; older ones stay only where the mode keeps them."""
        relation = load.relation
        schema = self._form.schema(relation)
        uri = table_uri(self._path, relation)
        target = Target.open(uri) or Target.create(uri, schema)
        commit = Commit.of_load(load)
        if not target.has(commit):
            if self._form.replaces_shape:
                require_same_mode(target.shape, schema, relation)
            else:
                target = target.evolve(reordered(target.shape, schema, relation))
            self._commit(commit, target, lambda: self._form.load(load, rows, target, commit))
        sync_to_last_record(target.uri, commit.app_id)

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What the tables themselves have recorded."""
        found = {}
        for relation in relations:
            target = Target.open(table_uri(self._path, relation))
            recorded = target.recorded(app_id(stream)) if target else None
            if recorded is not None:
                found[relation.qualified] = recorded
        return found

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _write_table(self, batch: Batch, changes: TableChanges) -> None:
        relation = changes.relation
        target = self._open(batch, relation)
        commit = Commit.of(batch)
        if target.has(commit):
            logger.info(
                "batch already applied table=%s sequence=%d", relation.qualified, batch.sequence
            )
        else:
            schema = self._form.schema(relation)
            target = target.evolve(evolved(target.shape, schema, relation))
            failpoint("delta.after_evolve")
            fitting = replace(changes, rows=widen(changes.rows, target.schema))
            self._commit(commit, target, lambda: self._form.write(fitting, target, commit))
        # Also what an earlier process has applied: it may have died before it got here.
        sync_to_last_record(target.uri, commit.app_id)

    def _commit(self, commit: Commit, target: Target, write: Callable[[], None]) -> None:
        try:
            failpoint("delta.before_commit")
            write()
            failpoint("delta.after_commit")
        except self._errors as error:
            # A writer that lost the race to one with the same batch has nothing left to do.
            now = Target.open(target.uri)
            if now is None or not now.has(commit):
                raise SinkError(
                    f"the lake table at {target.uri} did not take batch {commit.version}",
                    retry=True,
                ) from error

    def _open(self, batch: Batch, relation: Relation) -> Target:
        uri = table_uri(self._path, relation)
        target = Target.open(uri)
        known = relation.qualified in batch.known_tables
        if known and (target is None or target.recorded(app_id(batch.stream)) is None):
            state = "is gone" if target is None else f"has no record of stream {batch.stream}"
            raise SinkError(
                f"the lake table at {uri} {state}, but rows were delivered to it",
                hint="put the table back, or deliver it anew from a base",
            )
        return target or Target.create(uri, self._form.schema(relation))


def _form(engine: Engine, mode: Mode, *, soft_delete: bool) -> Form:
    match mode:
        case Mode.APPEND:
            return AppendForm(engine)
        case Mode.HISTORY:
            return HistoryForm(engine)
        case Mode.UPSERT:
            return SoftDeleteForm(engine) if soft_delete else UpsertForm(engine)
