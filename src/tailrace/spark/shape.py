"""Which columns a read of a table has."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tailrace.decode import change_schema
from tailrace.errors import ConfigError, SchemaError
from tailrace.log.history import headers_back
from tailrace.model import Relation
from tailrace.spark.options import ReadOptions
from tailrace.spark.whole import newest_base


def newest_relation(options: ReadOptions) -> Relation:
    """The last shape of the table that the range has seen; raises ConfigError."""
    reader = options.reader()
    reader.begin()  # a log that is not there is another error than a table that is not in it
    end = options.end(reader) if options.is_bounded else None
    base = newest_base(reader.store, options.table, upto=end)
    known: set[str] = set()
    for header in headers_back(reader.store):
        if base is not None and header.end <= base.position:
            break
        uses = [use for use in header.relations if end is None or use.since <= end]
        known |= {use.relation.qualified for use in uses}
        own = [use for use in uses if use.relation.qualified == options.table]
        newest = max(own, key=lambda use: use.since, default=None)
        if newest is not None and (base is None or newest.since.commit_lsn > base.position):
            return newest.relation
    if base is not None:
        return base.relation
    until = f" up to {end}" if end is not None else ""
    raise ConfigError(
        f"the log holds neither a base nor a change of {options.table}{until}",
        hint=f"tables: {', '.join(sorted(known)) or 'none yet'}",
    )


def spark_schema(relation: Relation, columns: Collection[str] | None) -> StructType:
    """The columns of a read; raises ConfigError if one is not there, SchemaError if two could not
    be told from each other.
    """
    unknown = [name for name in columns or () if name not in relation.column_names]
    if unknown:
        raise ConfigError(
            f"{relation.qualified} has no column {unknown[0]}",
            hint=f"columns: {', '.join(relation.column_names)}",
        )
    schema = change_type(relation, columns)
    names = [name.lower() for name in schema.names]
    twice = [name for name in schema.names if names.count(name.lower()) > 1]
    if twice:
        raise SchemaError(
            f"{relation.qualified} has a column {twice[0]} beside one of the same name",
            hint="name the columns to read with the option columns",
        )
    return schema


def change_type(relation: Relation, columns: Collection[str] | None) -> StructType:
    """The columns of a table's changes as Spark knows them; only `columns` of its own, if given."""
    return from_arrow_schema(change_schema(relation, columns))
