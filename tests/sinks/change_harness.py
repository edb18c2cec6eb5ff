"""What the tests of sinks that keep every change need beyond the sink: its changes, and ways to do
it harm.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.rows import dict_row

from tailrace.model import Relation
from tailrace.model.change import META_COLUMNS
from tailrace.sinks import Sink
from tailrace.sinks.delta import table_uri
from tailrace.sinks.parquet import ParquetOptions, ParquetSink
from tailrace.storage import open_store
from tests.sinks.harness import DeltaHarness, PostgresHarness, Together

Change = dict[str, Any]


class ChangeHarness(Protocol):
    """A sink under test."""

    @property
    def sink(self) -> Sink: ...

    def changes(self, relation: Relation) -> list[Change]:
        """Every change of the target, in the order of offsets; values that their column cannot
        hold are their texts.
        """
        ...

    def drop(self, relation: Relation) -> None:
        """Take the target away."""
        ...

    def rivals(self, barrier: Barrier) -> list[Sink]:
        """Two more sinks on the same target, which begin to write together."""
        ...


class DeltaChanges(DeltaHarness):
    """A lake in append mode."""

    def changes(self, relation: Relation) -> list[Change]:
        return in_order([self.table(relation).to_pyarrow_table().to_pylist()])


class PostgresChanges(PostgresHarness):
    """Tables of changes in a database."""

    def changes(self, relation: Relation) -> list[Change]:
        place = sql.Identifier(*self.options.place(relation))
        with self.database.connect() as conn:
            cursor = conn.cursor(row_factory=dict_row)
            found = cursor.execute(sql.SQL("SELECT * FROM {}").format(place)).fetchall()
        return in_order([found])


class ParquetHarness:
    """Change files in a directory or a bucket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sinks: list[ParquetSink] = []
        self._sink = self.open()

    @property
    def sink(self) -> Sink:
        return self._sink

    def open(self) -> ParquetSink:
        self._sinks.append(ParquetSink(ParquetOptions(self.path)))
        return self._sinks[-1]

    def files(self, relation: Relation) -> list[str]:
        """The files that the index names, below the table."""
        store = open_store(self._url(relation))
        entries = [json.loads(store.get(each.key)) for each in store.list("_index/")]
        return [file["path"] for entry in entries for file in entry["files"]]

    def changes(self, relation: Relation) -> list[Change]:
        store = open_store(self._url(relation))
        parts = [store.get(name) for name in self.files(relation)]
        return in_order([pq.read_table(pa.BufferReader(part)).to_pylist() for part in parts])

    def drop(self, relation: Relation) -> None:
        store = open_store(self._url(relation))
        if "://" not in self.path:
            shutil.rmtree(table_uri(self.path, relation))
        else:
            store.delete([entry.key for entry in store.list("")])

    def rivals(self, barrier: Barrier) -> list[Sink]:
        return [Together(self.open(), barrier) for _ in range(2)]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _url(self, relation: Relation) -> str:
        uri = table_uri(self.path, relation)
        return uri if "://" in uri else Path(uri).as_uri()


def in_order(parts: Sequence[Sequence[Change]]) -> list[Change]:
    """All changes by their offsets; a text in place of the NULL that stands for it."""
    rows = [_with_texts(row) for part in parts for row in part]
    return sorted(rows, key=place)


def place(row: Change) -> tuple[int, bool, int]:
    """A base stands behind what ended at its position."""
    return row["_commit_lsn"], row["_origin"] == "snapshot", row["_ordinal"]


def folded(changes: Sequence[Change], relation: Relation) -> list[tuple[object, ...]]:
    """The rows that the changes lead to, one change at a time."""
    rows: dict[tuple[object, ...], Change] = {}
    for change in changes:
        row = {name: change[name] for name in change if name not in META_COLUMNS}
        old = change["_before"] or row
        match change["_op"]:
            case "truncate":
                rows.clear()
            case "insert":
                assert _key(row, relation) not in rows, "an insert of a row that is there"
                rows[_key(row, relation)] = row
            case "delete":
                del rows[_key(old, relation)]
            case "update":
                held = rows.pop(_key(old, relation))
                rows[_key(row, relation)] = row | {
                    name: held[name] for name in change["_unchanged"] or ()
                }
    names = relation.column_names
    return sorted((tuple(str(row.get(name)) for name in names) for row in rows.values()), key=repr)


def _key(row: Change, relation: Relation) -> tuple[object, ...]:
    return tuple(row[name] for name in relation.key)


def _with_texts(row: Change) -> Change:
    texts = dict(row.get("_text") or ())
    return row | {name: text for name, text in texts.items() if name in row}
