"""The rows of a Delta table at one version, as far as they are what the source has now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace.errors import SinkError
from tailrace.model.change import TEXT
from tailrace.sinks.columns import DELETED_AT, VALID_TO
from tailrace.sinks.delta.target import Target
from tailrace.verify.lake import Spread

_MARKS: Final = (VALID_TO, DELETED_AT)
"""A row that has a value in one of these is not in the source any more."""


class DeltaRows:
    """One version of a lake table; of a history only the open rows, of soft deletes none."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._schema = target.schema
        self._marks = [name for name in _MARKS if name in self._schema.names]

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> DeltaRows | None:
        """The table at `uri`, by default as it is now, or None if there is none."""
        try:
            return cls(Target(uri, DeltaTable(uri, version=version)))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise SinkError(f"the lake table at {uri} cannot be opened", retry=True) from error

    @property
    def columns(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(self._schema.names)

    def count(self) -> int:
        """From the statistics that its writers left."""
        return int(self.target.table.count())

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns and `_text`; one that the table lacks is NULL."""
        asked = dict.fromkeys((*columns, TEXT, *self._marks))
        there = [name for name in asked if name in self._schema.names]
        lacking = [name for name in columns if name not in self._schema.names]
        # A scan may give texts in a form that cannot be worked on.
        plain = pa.schema([self._schema.field(name) for name in there])
        try:
            scan = self.target.table.scan(columns=there)
            # Through Arrow, which lets other threads run while it waits; the scan itself does not.
            for batch in pa.RecordBatchReader.from_stream(scan):
                rows = self._current(pa.Table.from_batches([batch]).select(there).cast(plain))
                for name in lacking:
                    rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
                yield rows
        except (DeltaError, pa.ArrowException, OSError) as error:
            uri = self.target.uri
            raise SinkError(f"the lake table at {uri} cannot be read", retry=True) from error

    def spread(self, column: str) -> list[Spread] | None:
        """By the statistics of its files, if all have them."""
        found = pa.table(self.target.table.get_add_actions(flatten=True))
        names = [f"min.{column}", f"max.{column}", "num_records"]
        if not set(names) <= set(found.column_names):
            return None
        columns = [found.column(name).to_pylist() for name in names]
        files = list(zip(*columns, strict=True))
        if any(value is None for file in files for value in file):
            return None
        return [Spread(int(low), int(high), int(count)) for low, high, count in files]

    def read(self, columns: Sequence[str], keys: pa.Table) -> pa.Table:
        """These columns of the rows that have one of these keys."""
        rows = self._current(self.target.read([*columns, *self._marks], keys))
        return rows.select(list(columns))

    def _current(self, rows: pa.Table) -> pa.Table:
        for mark in self._marks:
            rows = rows.filter(pc.is_null(rows.column(mark)))
        return rows
