"""Every change in Parquet files, for engines that have no Delta; each in the index exactly once.

Files are only ever added. A table that is loaded anew goes on behind a TRUNCATE of its own, so that
whoever folds the changes arrives at the rows of the load.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Lock
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges, change_schema
from tailrace.errors import SchemaError, SinkError, TargetLost
from tailrace.failpoint import failpoint
from tailrace.model import Relation
from tailrace.sinks.conform import conform
from tailrace.sinks.evolution import evolved, reordered
from tailrace.sinks.load_rows import truncate_row
from tailrace.sinks.parquet.entry import ChangeFile, Entry, Kind
from tailrace.sinks.parquet.files import split, to_parquet
from tailrace.sinks.parquet.options import ParquetOptions
from tailrace.sinks.parquet.table import ChangeTable
from tailrace.sinks.place import table_uri
from tailrace.sinks.refusal import require_names
from tailrace.sinks.side_by_side import write_tables
from tailrace.sinks.sink import Batch, Holds, Load

_TABLES_AT_ONCE: Final = 4

logger = logging.getLogger(__name__)


class ParquetSink:
    """Change files of many tables below one path."""

    holds = Holds.CHANGES

    def __init__(self, options: ParquetOptions) -> None:
        self._options = options
        self._tables: dict[str, ChangeTable] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="tailrace-parquet")

    def prepare(self, relation: Relation) -> None:
        """Begin an index without files, or see that the one that is there fits."""
        shape = _shape(relation)
        last = self._table(relation).make(Entry(0, "table", shape))
        evolved(last.shape, shape, relation)

    def write(self, batch: Batch) -> None:
        """Write the tables side by side; those that can be written are, also if another one
        fails.
        """
        write_tables(self._pool, batch, self._write_table)

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Add the rows, behind a TRUNCATE if there are any before them."""
        table = self._table(load.relation)
        last = table.make(Entry(0, "table", _shape(load.relation)))
        if last.covers(load.stream, load.sequence):
            return
        addition = _Addition(load.relation, "load", load.stream, load.sequence, str(load.position))
        parts = chain([truncate_row(load)], rows) if last.rows else rows
        self._add(table, addition, addition.shape(last), parts)

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What the indexes have recorded."""
        found = {}
        for relation in relations:
            last = self._table(relation).last()
            if last is not None and stream in last.recorded:
                found[relation.qualified] = last.recorded[stream]
        return found

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """Those whose index has a record."""
        last = {relation.qualified: self._table(relation).last() for relation in relations}
        return {name for name, entry in last.items() if entry is not None and entry.recorded}

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _write_table(self, batch: Batch, changes: TableChanges) -> None:
        relation = changes.relation
        table = self._table(relation)
        last = table.last()
        known = relation.qualified in batch.known_tables
        if known and (last is None or batch.stream not in last.recorded):
            raise self._gone(batch, relation)
        last = last or table.make(Entry(0, "table", _shape(relation)))
        if last.covers(batch.stream, batch.sequence):
            logger.info(
                "batch already applied table=%s sequence=%d", relation.qualified, batch.sequence
            )
            return
        kind: Kind = "replay" if batch.replay else "batch"
        addition = _Addition(relation, kind, batch.stream, batch.sequence, str(batch.upto))
        self._add(table, addition, addition.shape(last), [changes.rows])

    def _add(
        self, table: ChangeTable, addition: _Addition, shape: pa.Schema, parts: Iterable[pa.Table]
    ) -> None:
        """Put the files, then the entry that makes them count."""
        plain = pa.schema([pa.field(field.name, field.type) for field in shape])
        files: list[ChangeFile] = []
        for part in parts:
            for folder, rows in split(conform(part, plain), self._options.partition_by):
                stem = f"{folder}/{addition.stream}-{addition.sequence:012d}-{len(files):05d}"
                files.append(table.add_file(stem, to_parquet(rows), rows.num_rows))
                failpoint("parquet.after_file")
        failpoint("parquet.before_commit")
        table.commit(partial(addition.following, tuple(files)))
        failpoint("parquet.after_commit")

    def _table(self, relation: Relation) -> ChangeTable:
        uri = table_uri(self._options.path, relation)
        with self._lock:
            if uri not in self._tables:
                self._tables[uri] = ChangeTable(uri)
            return self._tables[uri]

    def _gone(self, batch: Batch, relation: Relation) -> TargetLost:
        place = table_uri(self._options.path, relation)
        return TargetLost(
            f"the index at {place} is gone or has no record of stream {batch.stream}, but rows were"
            " delivered there",
            hint=f"put the files back, or `tailrace snapshot {relation.qualified}` to deliver the"
            " table anew",
        )


@dataclass(frozen=True, slots=True)
class _Addition:
    """A batch's changes of one table, by themselves or by a replay, or a load."""

    relation: Relation
    kind: Kind
    stream: str
    sequence: int
    upto: str

    def shape(self, last: Entry) -> pa.Schema:
        """The table's shape with it; raises SchemaError."""
        wanted = _shape(self.relation)
        if self.kind != "load":
            return evolved(last.shape, wanted, self.relation)
        try:
            return reordered(last.shape, wanted, self.relation)
        except SchemaError as error:
            # Here is the new base; another one would not help.
            raise SchemaError(str(error), hint=error.hint, retry=False) from None

    def following(self, files: tuple[ChangeFile, ...], last: Entry | None) -> Entry | None:
        """The entry behind the last one; None if this is recorded already."""
        if last is None:
            raise SinkError(
                f"the index of {self.relation.qualified} was taken away meanwhile", retry=True
            )
        if last.covers(self.stream, self.sequence):
            return None
        return Entry(
            number=last.number + 1,
            kind=self.kind,
            shape=self.shape(last),
            stream=self.stream,
            sequence=self.sequence,
            upto=self.upto,
            files=files,
            rows=last.rows + sum(file.rows for file in files),
            recorded={**last.recorded, self.stream: self.sequence},
        )


def _shape(relation: Relation) -> pa.Schema:
    """All columns of a change; a key is not needed. Raises SchemaError."""
    require_names(relation)
    return change_schema(relation)
