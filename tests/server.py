"""The servers and databases that tests get from the fixtures in `conftest`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Protocol, TypeAlias

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.embedded import EmbeddedPostgres, StopMode

_numbers = count(1)

FAST_SETTINGS = {"fsync": "off", "shared_buffers": "32MB", "max_prepared_transactions": "8"}
"""Safe even for tests that kill the server: only the death of the machine loses unsynced data."""


VERSIONS = (18, 16)
"""Both ends of the versions at hand."""

both_versions = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"pg{version}")
"""For a test, or a module of tests, whose database is to be one of each version."""

newest_version = pytest.mark.parametrize(
    "version", VERSIONS[:1], ids=lambda version: f"pg{version}"
)
"""Where all others run on both: for a slow test of what the versions have in common."""

older_version = pytest.mark.parametrize("version", VERSIONS[1:], ids=lambda version: f"pg{version}")
"""For one of several slow tests of the same thing; the others have the newest version."""


class Server(EmbeddedPostgres):
    """An embedded server, with what only tests need."""

    def restart(self, mode: StopMode = "fast", *, immediate: bool = False) -> None:
        """Restart; `immediate` is short for the mode that is to Postgres what a crash is."""
        super().restart("immediate" if immediate else mode)

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        """A new autocommit connection; the caller closes it."""
        return psycopg.connect(make_conninfo(self.dsn, dbname=dbname), autocommit=True)

    @contextmanager
    def database(self, encoding: str = "UTF8") -> Iterator[Database]:
        """A fresh database; what the test made there, or on the server, is gone afterwards."""
        self.start()
        name = f"test_{next(_numbers)}"
        create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if encoding != "UTF8":
            # Only the template that nobody has written to, and only locale C, take any encoding.
            kind = sql.SQL(" ENCODING {} LOCALE 'C' TEMPLATE template0")
            create += kind.format(sql.Literal(encoding))
        with self.connect() as connection:
            connection.execute(create)
        try:
            yield Database(name, self)
        finally:
            self.start()
            with self.connect(name) as connection:
                _roll_back_prepared(connection)
            with self.connect() as connection:
                _drop_slots(connection)
                connection.execute(
                    sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
                )
                _drop_roles(connection)


@dataclass(frozen=True, slots=True)
class Database:
    """One test's own database."""

    name: str
    server: Server

    @property
    def dsn(self) -> str:
        """How to connect through the Unix socket."""
        return make_conninfo(self.server.dsn, dbname=self.name)

    @property
    def tcp_dsn(self) -> str:
        """How to connect through the loopback port."""
        return make_conninfo(self.server.tcp_dsn, dbname=self.name)

    def connect(self) -> psycopg.Connection:
        """A new autocommit connection; the caller closes it."""
        return psycopg.connect(self.dsn, autocommit=True)


def _roll_back_prepared(connection: psycopg.Connection) -> None:
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for (gid,) in connection.execute(query).fetchall():
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


def _drop_slots(connection: psycopg.Connection) -> None:
    """Drop every slot of the server; one whose reader is just leaving is busy for a moment."""
    deadline = time.monotonic() + 30
    while slots := connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall():
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE active_pid IS NOT NULL"
        )
        for (name,) in slots:
            try:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                assert time.monotonic() < deadline, f"slot {name} stays in use"
                time.sleep(0.01)


def _drop_roles(connection: psycopg.Connection) -> None:
    query = "SELECT rolname FROM pg_roles WHERE rolname <> 'postgres' AND rolname !~ '^pg_'"
    for (name,) in connection.execute(query).fetchall():
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


class ServerFactory(Protocol):
    """Makes and starts a private server, on an own directory, that ends with the test."""

    def __call__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        version: int = 18,
        tcp: bool = True,
    ) -> Server: ...


Servers: TypeAlias = Callable[[int], Server]
"""The worker's server of a version."""
