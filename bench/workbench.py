"""Where a benchmark works: a directory, a Postgres of its own in it, and a line to say what is
going on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from rich.console import Console

from bench.options import Options
from bench.source import Database, Source
from tailrace.embedded import EmbeddedPostgres

SERVER_SETTINGS: Final = {
    "shared_buffers": "256MB",
    # What Postgres does on its own account must not fall into what is measured.
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "64GB",
}


class Workbench:
    """Hands out databases and sources on one server."""

    def __init__(self, options: Options, server: EmbeddedPostgres, console: Console) -> None:
        self.options = options
        self.console = console
        self._server = server
        self._began = time.monotonic()
        self._names: list[str] = []

    def say(self, text: str) -> None:
        """One line of progress."""
        self.console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", highlight=False)

    @contextmanager
    def database(self, name: str) -> Iterator[Database]:
        """A fresh database, dropped at the end with its slots."""
        server = self._server
        create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute(create)
        try:
            yield Database(
                make_conninfo(server.dsn, dbname=name),
                make_conninfo(server.tcp_dsn, dbname=name),
                server.bin_dir,
            )
        finally:
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                conn.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE database = %s AND NOT active",
                    (name,),
                )
                conn.execute(drop)

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """A fresh directory, deleted at the end."""
        place = self.options.directory / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def source(self, name: str) -> Iterator[Source]:
        """A source on a database of its own, not begun yet."""
        with self.database(f"bench_{name}") as database, self.directory(name) as directory:
            yield Source(name, database, directory)


@contextmanager
def own_server(options: Options) -> Iterator[EmbeddedPostgres]:
    """A Postgres in the run's directory; nothing of it is left at the end."""
    options.directory.mkdir(parents=True, exist_ok=True)
    server = EmbeddedPostgres(
        options.directory / "postgres",
        version=options.postgres,
        settings=SERVER_SETTINGS,
        tcp=True,
    )
    try:
        with server:
            yield server
    finally:
        server.destroy()
