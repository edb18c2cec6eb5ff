"""A lake table as it is at one version: its columns, the sequences it has recorded, its rows.

Tables are always made, opened and widened by the embedded Delta library, whichever engine then
writes the rows, so that every engine works on the same table. On an object store it finds its
credentials in the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace.errors import SinkError
from tailrace.sinks.delta.bounds import first_column_bounds
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.shape import Field, delta_fields
from tailrace.sinks.keys import find_keys

# A merge writes the files that it touches anew, and splits what it writes at this size. Without
# it the whole table ends up in one file after a few merges of scattered keys, and then every
# merge rewrites all of it.
_FILE_BYTES: Final = 8 << 20
_PROPERTIES: Final = {"delta.targetFileSize": str(_FILE_BYTES)}
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"


class Target:
    """One version of one lake table."""

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.uri = uri
        self.table = table

    @classmethod
    def open(cls, uri: str) -> Self | None:
        """The table's newest version, or None if there is no table. Raises SinkError."""
        try:
            table = DeltaTable(uri)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise SinkError(f"the lake table at {uri} cannot be opened", retry=True) from error
        if table.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none":
            # The embedded library would write such a table without complaint, and its rows would
            # read as NULL.
            raise SinkError(
                f"the lake table at {uri} has column mapping, which cannot be written",
                hint="deliver the table anew to another lake path",
            )
        return cls(uri, table)

    @classmethod
    def create(cls, uri: str, schema: pa.Schema) -> Self:
        """Make the table, empty, unless another writer is faster. Raises SinkError."""
        try:
            DeltaTable.create(
                uri, Schema.from_arrow(schema), mode="ignore", configuration=_PROPERTIES
            )
        except (DeltaError, OSError) as error:
            made = cls.open(uri)
            if made is None:
                raise SinkError(f"the lake table at {uri} cannot be made", retry=True) from error
            return made
        made = cls.open(uri)
        assert made is not None, f"{uri} was made and is not there"
        return made

    @property
    def fields(self) -> dict[str, Field]:
        """The columns by name, in the table's order."""
        return delta_fields(self.table.schema())

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow types."""
        fields = pa.table(self.table.schema().to_arrow().empty_table()).schema
        return pa.schema([pa.field(field.name, field.type) for field in fields])

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows for certain: not even a file."""
        return not self.table.file_uris()

    def recorded(self, app_id: str) -> int | None:
        """The version of this application's last transaction in the table."""
        return self.table.transaction_version(app_id)

    def has(self, commit: Commit) -> bool:
        """Whether this commit, or a later one of its application, is in the table."""
        recorded = self.recorded(commit.app_id)
        return recorded is not None and recorded >= commit.version

    def read(self, columns: Sequence[str], keys: pa.Table) -> pa.Table:
        """These columns of the rows that have one of these keys. Raises SinkError."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        bounds = first_column_bounds(keys)
        found = []
        try:
            scan = self.table.scan(columns=list(columns), predicate=bounds)
            # Through Arrow, which lets other threads run while it waits; the scan itself does not.
            for batch in pa.RecordBatchReader.from_stream(scan):
                rows = pa.Table.from_batches([batch]).select(list(columns)).cast(wanted)
                found.append(rows.filter(find_keys(rows.select(keys.column_names), keys) >= 0))
        except (DeltaError, pa.ArrowException, OSError) as error:
            raise SinkError(f"the lake table at {self.uri} cannot be read", retry=True) from error
        return pa.concat_tables(found) if found else wanted.empty_table()

    def widen(self, schema: pa.Schema) -> Self:
        """Add the columns that are missing, in a commit of its own that may be repeated."""
        try:
            write_deltalake(self.table, schema.empty_table(), mode="append", schema_mode="merge")
        except (DeltaError, OSError) as error:
            raise SinkError(
                f"the lake table at {self.uri} cannot be widened", retry=True
            ) from error
        widened = self.open(self.uri)
        assert widened is not None, f"{self.uri} was widened and is not there"
        return widened
