"""The rows of a Delta table at one version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace.errors import SinkError
from tailrace.model.change import TEXT
from tailrace.sinks.delta.target import Target


class DeltaRows:
    """One version of a lake table that holds the source's rows as they are."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._schema = target.schema

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
        return int(self._target.table.count())

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns and `_text`; one that the table lacks is NULL."""
        there = [name for name in (*columns, TEXT) if name in self._schema.names]
        lacking = [name for name in columns if name not in self._schema.names]
        # A scan may give texts in a form that cannot be worked on.
        plain = pa.schema([self._schema.field(name) for name in there])
        try:
            scan = self._target.table.scan(columns=there)
            # Through Arrow, which lets other threads run while it waits; the scan itself does not.
            for batch in pa.RecordBatchReader.from_stream(scan):
                rows = pa.Table.from_batches([batch]).select(there).cast(plain)
                for name in lacking:
                    rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
                yield rows
        except (DeltaError, pa.ArrowException, OSError) as error:
            uri = self._target.uri
            raise SinkError(f"the lake table at {uri} cannot be read", retry=True) from error
