"""A private Postgres that comes with the package, for trying Tailrace out and for its tests."""

from tailrace.embedded.postgres import EmbeddedPostgres, StopMode, running_dsn

__all__ = ["EmbeddedPostgres", "StopMode", "running_dsn"]
