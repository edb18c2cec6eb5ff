"""A sink that keeps what it is given: the batches, and the rows they fold to.

For tests and notebooks. It keeps to the same contract as a durable sink while the process lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from tailrace.decode import TableChanges, arrow_schema, change_schema
from tailrace.errors import SchemaError, SinkError, TailraceError
from tailrace.model import Relation
from tailrace.model.change import TEXT
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.keys import find_keys, key_columns
from tailrace.sinks.refusal import require_key, require_names
from tailrace.sinks.settle import settle
from tailrace.sinks.sink import Batch, Load


@dataclass(slots=True)
class _Table:
    """A target: its rows, and the sequence that each stream has recorded in it."""

    key: tuple[str, ...]
    rows: pa.Table
    recorded: dict[str, int] = field(default_factory=dict)


class MemorySink:
    """`batches` has every batch that was applied, in part or in full, as it came."""

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
        schema = _schema(load.relation)
        loaded = [part.select(schema.names) for part in rows]
        with self._lock:
            table = self._tables.get(load.relation.qualified)
            recorded = table.recorded if table is not None else {}
            if recorded.get(load.stream, -1) >= load.sequence:
                return
            fresh = pa.concat_tables([schema.empty_table(), *loaded]).combine_chunks()
            self._tables[load.relation.qualified] = _Table(
                load.relation.key, fresh, {**recorded, load.stream: load.sequence}
            )

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What was recorded with the rows."""
        names = [relation.qualified for relation in relations]
        with self._lock:
            found = {name: self._tables[name].recorded for name in names if name in self._tables}
            return {name: record[stream] for name, record in found.items() if stream in record}

    def close(self) -> None:
        """Nothing to let go of."""

    def _fitting(self, relation: Relation) -> _Table:
        schema = _schema(relation)
        table = self._tables.get(relation.qualified)
        if table is None:
            table = _Table(relation.key, schema.empty_table())
            self._tables[relation.qualified] = table
        _require_fit(table, schema, relation)
        return table

    def _write_table(self, batch: Batch, changes: TableChanges) -> None:
        relation = changes.relation
        if not changes.rows.num_rows:
            return
        table = self._fitting(relation)
        recorded = table.recorded.get(batch.stream)
        if recorded is None and relation.qualified in batch.known_tables:
            raise SinkError(
                f"table {relation.qualified} is gone, but rows were delivered to it",
                hint="deliver it anew from a base",
            )
        if recorded is not None and recorded >= batch.sequence:
            return
        rows = _widened(table.rows, _schema(relation))

        def read(columns: Sequence[str], keys: pa.Table) -> pa.Table:
            found = find_keys(key_columns(rows, relation.key), keys) >= 0
            return rows.filter(found).select(list(columns))

        folded = settle(fold(changes), relation, read, in_place=False)
        table.rows = _applied(rows, folded, relation)
        table.recorded[batch.stream] = batch.sequence


def _schema(relation: Relation) -> pa.Schema:
    require_names(relation)
    require_key(relation)
    return arrow_schema(relation).append(change_schema(relation).field(TEXT))


def _require_fit(table: _Table, schema: pa.Schema, relation: Relation) -> None:
    fits = all(
        field.name in schema.names and schema.field(field.name).type == field.type
        for field in table.rows.schema
    )
    if not fits or table.key != relation.key:
        raise SchemaError(
            f"the rows of {relation.qualified} do not fit those that are there",
            hint="only new columns are taken over",
        )


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    for column in schema:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
    return rows


def _applied(rows: pa.Table, folded: Fold, relation: Relation) -> pa.Table:
    upserts = folded.upserts.select(rows.column_names)
    if folded.truncated:
        return upserts
    replaced = pa.concat_tables([key_columns(upserts, relation.key), folded.deletes])
    stays = find_keys(key_columns(rows, relation.key), replaced) < 0
    return pa.concat_tables([rows.filter(stays), upserts]).combine_chunks()
