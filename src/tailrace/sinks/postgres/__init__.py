"""Tables of another Postgres database, with each batch in one transaction."""

from tailrace.sinks.postgres.options import PostgresOptions
from tailrace.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresOptions", "PostgresSink"]
