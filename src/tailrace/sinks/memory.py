"""A sink that keeps what it is given: the batches, and the rows they fold to.

For tests and notebooks. It keeps to the same contract as a durable sink while the process lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import TailraceError, TargetLost
from tailrace.model import Relation
from tailrace.sinks.conform import conform, widen
from tailrace.sinks.events import with_keys
from tailrace.sinks.evolution import evolved
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.keys import find_keys, key_columns
from tailrace.sinks.settle import settle
from tailrace.sinks.shape import row_schema
from tailrace.sinks.sink import Batch, Holds, Load


@dataclass(slots=True)
class _Table:
    """A target: its rows, and the sequence that each stream has recorded in it."""

    rows: pa.Table
    recorded: dict[str, int] = field(default_factory=dict)


class MemorySink:
    """`batches` has every batch that was applied, in part or in full, as it came."""

    holds = Holds.ROWS

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._tables: dict[str, _Table] = {}
        self._lock = Lock()

    def table(self, name: str) -> pa.Table:
        """The rows that a table (`schema.name`) has now, in no particular order."""
        return self._tables[name].rows

    def drop(self, name: str) -> None:
        """Lose a table (`schema.name`), with what was recorded in it."""
        with self._lock:
            del self._tables[name]

    def prepare(self, relation: Relation) -> None:
        """Begin an empty table, or see that the one that is there fits."""
        with self._lock:
            self._fitting(relation)

    def write(self, batch: Batch) -> None:
        """Fold the batch into the tables; those that can be written are, if another one fails."""
        failed: list[TailraceError] = []
        with self._lock:
            before = {name: table.rows for name, table in self._tables.items()}
            for changes in batch.tables:
                try:
                    self._write_table(batch, changes)
                except TailraceError as error:
                    failed.append(error)
            if any(table.rows is not before.get(name) for name, table in self._tables.items()):
                self.batches.append(batch)
        if failed:
            raise failed[0]

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Begin the table anew with these rows."""
        schema = row_schema(load.relation)
        loaded = [conform(part, schema) for part in with_keys(rows, load.relation)]
        with self._lock:
            table = self._tables.get(load.relation.qualified)
            recorded = table.recorded if table is not None else {}
            if recorded.get(load.stream, -1) >= load.sequence:
                return
            fresh = pa.concat_tables([schema.empty_table(), *loaded]).combine_chunks()
            self._tables[load.relation.qualified] = _Table(
                fresh, {**recorded, load.stream: load.sequence}
            )

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What was recorded with the rows."""
        names = [relation.qualified for relation in relations]
        with self._lock:
            found = {name: self._tables[name].recorded for name in names if name in self._tables}
            return {name: record[stream] for name, record in found.items() if stream in record}

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """Those with a record."""
        names = [relation.qualified for relation in relations]
        with self._lock:
            return {name for name in names if name in self._tables and self._tables[name].recorded}

    def close(self) -> None:
        """Nothing to let go of."""

    def _fitting(self, relation: Relation) -> tuple[_Table, pa.Table]:
        """The table of the relation, and its rows with the columns that the relation needs."""
        schema = row_schema(relation)
        table = self._tables.setdefault(relation.qualified, _Table(schema.empty_table()))
        return table, conform(table.rows, evolved(table.rows.schema, schema, relation))

    def _write_table(self, batch: Batch, changes: TableChanges) -> None:
        relation = changes.relation
        if not changes.rows.num_rows:
            return
        table, rows = self._fitting(relation)
        recorded = table.recorded.get(batch.stream)
        if recorded is None and relation.qualified in batch.known_tables:
            raise TargetLost(
                f"table {relation.qualified} is gone, but rows were delivered to it",
                hint="deliver it anew from a base",
            )
        if recorded is not None and recorded >= batch.sequence:
            return
        fitting = replace(changes, rows=widen(changes.rows, rows.schema))

        def read(columns: Sequence[str], keys: pa.Table) -> pa.Table:
            found = find_keys(key_columns(rows, relation.key), keys) >= 0
            return rows.filter(found).select(list(columns))

        folded = settle(fold(fitting), relation, read, in_place=False)
        table.rows = _applied(rows, folded, relation)
        table.recorded[batch.stream] = batch.sequence


def _applied(rows: pa.Table, folded: Fold, relation: Relation) -> pa.Table:
    upserts = conform(folded.upserts, rows.schema)
    if folded.truncated:
        return upserts
    replaced = pa.concat_tables([key_columns(upserts, relation.key), folded.deletes])
    stays = find_keys(key_columns(rows, relation.key), replaced) < 0
    return pa.concat_tables([rows.filter(pa.array(stays)), upserts]).combine_chunks()
