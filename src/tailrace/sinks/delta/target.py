"""A lake table as it is at one version: its columns, the sequences it has recorded, its rows.

Tables are always made, opened and widened by the embedded Delta library, whichever engine then
writes the rows, so that every engine works on the same table. On an object store it finds its
credentials in the environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final, Self

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace.errors import SinkError
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bounds import first_column_bounds
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.feeding import FEEDING
from tailrace.sinks.delta.trouble import lake_trouble
from tailrace.sinks.keys import find_keys
from tailrace.sinks.shape import renewed

# A merge writes the files that it touches anew, and splits what it writes at this size. Without
# it the whole table ends up in one file after a few merges of scattered keys, and then every
# merge rewrites all of it.
FILE_BYTES: Final = 8 << 20
_PROPERTIES: Final = {"delta.targetFileSize": str(FILE_BYTES)}
_DELETION_VECTORS: Final = {"delta.enableDeletionVectors": "true"}
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
            raise lake_trouble(f"the lake table at {uri} cannot be opened", error) from error
        if table.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none":
            # The embedded library would write such a table without complaint, and its rows would
            # read as NULL.
            raise SinkError(
                f"the lake table at {uri} has column mapping, which cannot be written",
                hint="deliver the table anew to another lake path",
            )
        return cls(uri, table)

    @classmethod
    def create(
        cls,
        uri: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        deletion_vectors: bool = False,
    ) -> Self:
        """Make the table, empty, unless another writer is faster. Raises SinkError."""
        try:
            DeltaTable.create(
                uri,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(partition_by) or None,
                configuration=_PROPERTIES | (_DELETION_VECTORS if deletion_vectors else {}),
            )
        except (DeltaError, OSError) as error:
            made = cls.open(uri)
            if made is None:
                raise lake_trouble(f"the lake table at {uri} cannot be made", error) from error
            return made
        made = cls.open(uri)
        assert made is not None, f"{uri} was made and is not there"
        return made

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow types, in the table's order."""
        fields = pa.table(self.table.schema().to_arrow().empty_table()).schema
        return pa.schema([pa.field(field.name, field.type) for field in fields])

    @property
    def shape(self) -> pa.Schema:
        """The same with the marks that the table's own schema has."""
        described = json.loads(self.table.schema().to_json())["fields"]
        marks = {field["name"]: field["metadata"] for field in described}
        return pa.schema(
            [
                field.with_metadata({key: str(value) for key, value in marks[field.name].items()})
                for field in self.schema
            ]
        )

    @property
    def partitions(self) -> list[str]:
        """The columns that it is partitioned by."""
        return list(self.table.metadata().partition_columns)

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows for certain: not even a file."""
        return not self.table.file_uris()

    @property
    def is_new(self) -> bool:
        """Whether it was made, without rows, and nothing else."""
        return self.table.version() == 0 and self.is_empty

    @property
    def next_version(self) -> int:
        """The number of the next commit, if nobody else makes it."""
        return self.table.version() + 1

    def recorded(self, app_id: str) -> int | None:
        """The version of this application's last transaction in the table."""
        return self.table.transaction_version(app_id)

    def has(self, commit: Commit) -> bool:
        """Whether this commit, or a later one of its application, is in the table."""
        recorded = self.recorded(commit.app_id)
        return recorded is not None and recorded >= commit.version

    def read(self, columns: Sequence[str], keys: pa.Table, *, where: str | None = None) -> pa.Table:
        """These columns of the rows that have one of these keys. Raises SinkError."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        conditions = [part for part in (where, first_column_bounds(keys)) if part]
        found = [
            rows.filter(pa.array(find_keys(rows.select(keys.column_names), keys) >= 0))
            for rows in self._scan(wanted, " AND ".join(conditions) or None)
        ]
        return pa.concat_tables([wanted.empty_table(), *found])

    def read_range(self, condition: str) -> pa.Table:
        """All columns of the rows that meet a condition. Raises SinkError."""
        schema = self.schema
        found = self._scan(schema, condition or None)
        return pa.concat_tables([schema.empty_table(), *found]).combine_chunks()

    def _scan(self, wanted: pa.Schema, predicate: str | None) -> Iterator[pa.Table]:
        try:
            scan = self.table.scan(columns=wanted.names, predicate=predicate)
            # Through Arrow, which lets other threads run while it waits; the scan itself does not.
            for batch in pa.RecordBatchReader.from_stream(scan):
                # A scan may give texts in a form that cannot be worked on.
                yield pa.Table.from_batches([batch]).select(wanted.names).cast(wanted)
        except (DeltaError, pa.ArrowException, OSError) as error:
            raise lake_trouble(f"the lake table at {self.uri} cannot be read", error) from error

    def evolve(self, shape: pa.Schema) -> Self:
        """Get these columns, in commits of its own that may be repeated. Raises SinkError."""
        held = self.shape
        if shape.equals(held, check_metadata=True):
            return self
        try:
            if shape.names[: len(held)] == held.names and all(
                shape.field(field.name).type == field.type for field in held
            ):
                self._extend(held, shape)
            else:
                self._rewrite(shape)
        except (DeltaError, pa.ArrowException, OSError) as error:
            message = f"the lake table at {self.uri} cannot be given its new columns"
            raise lake_trouble(message, error) from error
        evolved = self.open(self.uri)
        assert evolved is not None, f"{self.uri} was changed and is not there"
        return evolved

    def _extend(self, held: pa.Schema, shape: pa.Schema) -> None:
        """Only the table's description changes."""
        if len(shape) > len(held):
            write_deltalake(self.table, shape.empty_table(), mode="append", schema_mode="merge")
        for field in held:
            wanted = shape.field(field.name).metadata or {}
            if wanted != (field.metadata or {}):
                marks = {key.decode(): value.decode() for key, value in wanted.items()}
                self.table.alter.set_column_metadata(field.name, marks)

    def _rewrite(self, shape: pa.Schema) -> None:
        """All rows are written anew, as they are read."""
        shape = renewed(shape, self.next_version)
        scan = pa.RecordBatchReader.from_stream(self.table.scan())
        parts = (conform(pa.Table.from_batches([batch]), shape) for batch in scan)
        rows = (batch for part in parts for batch in part.to_batches())
        with FEEDING:
            write_deltalake(
                self.table,
                pa.RecordBatchReader.from_batches(shape, rows),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=self.partitions or None,
            )
