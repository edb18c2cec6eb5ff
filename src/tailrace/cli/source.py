"""The database that the configuration means: a server of the user's, or the embedded one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.cli.config import Config
from tailrace.embedded import EmbeddedPostgres, running_dsn

logger = logging.getLogger(__name__)


def embedded_directory(config: Config) -> Path:
    """Where the embedded Postgres keeps its data."""
    return config.directory / "postgres"


def current_dsn(config: Config) -> str | None:
    """The DSN as it is now; None if the embedded Postgres is meant and does not run."""
    if config.source.dsn is not None:
        return config.source.dsn.get_secret_value()
    return running_dsn(embedded_directory(config))


@contextmanager
def source_dsn(config: Config) -> Iterator[str]:
    """The DSN; if the embedded Postgres is meant, it runs at least as long as this block."""
    dsn = current_dsn(config)
    if dsn is not None:
        yield dsn
        return
    config.directory.mkdir(parents=True, exist_ok=True)
    with EmbeddedPostgres(embedded_directory(config)) as server:
        logger.info("embedded postgres started dsn=%s", server.dsn)
        yield server.dsn
