"""The rows of a Delta table at one version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace.errors import SinkError
from tailrace.model.change import TEXT


class DeltaRows:
    """One version of a lake table that holds the source's rows as they are."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> DeltaRows | None:
        """The table at `uri`, by default as it is now, or None if there is none."""
        try:
            return cls(DeltaTable(uri, version=version))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise SinkError(f"the lake table at {uri} cannot be opened", retry=True) from error

    @property
    def columns(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(field.name for field in self._table.schema().fields)

    def count(self) -> int:
        """From the statistics that its writers left."""
        return int(self._table.count())

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns and `_text`."""
        wanted = [*columns, *({TEXT} & self.columns)]
        try:
            scan = self._table.scan(columns=wanted)
            # Through Arrow, which lets other threads run while it waits; the scan itself does not.
            for batch in pa.RecordBatchReader.from_stream(scan):
                yield pa.Table.from_batches([batch])
        except (DeltaError, pa.ArrowException, OSError) as error:
            uri = self._table.table_uri
            raise SinkError(f"the lake table at {uri} cannot be read", retry=True) from error
