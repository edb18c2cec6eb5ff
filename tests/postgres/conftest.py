"""Databases on both supported ends of the versions at hand, and a role that may do no more than it
must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.postgres.session import Connection, connect
from tests.server import FAST_SETTINGS, Database, Server

VERSIONS = (18, 16)

Servers = Callable[[int], Server]


@pytest.fixture(scope="session")
def source_servers(server_dir: Path) -> Iterator[Servers]:
    """The worker's server of a version, made when first asked for; prepared transactions work."""
    running: dict[int, Server] = {}
    with ExitStack() as stack:

        def server(version: int) -> Server:
            if version not in running:
                settings = {**FAST_SETTINGS, "max_prepared_transactions": "5"}
                directory = server_dir / f"source-{version}"
                running[version] = Server(directory, version=version, settings=settings, tcp=True)
                stack.enter_context(running[version])
            return running[version]

        yield server


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def source(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[Database]:
    """A fresh database on each version."""
    with source_servers(request.param).database() as fresh:
        yield fresh


@pytest.fixture
def admin(source: Database) -> Iterator[Connection]:
    """A superuser's session."""
    with connect(source.dsn) as conn:
        yield conn


@pytest.fixture
def capture_dsn(source: Database, admin: Connection) -> str:
    """For a role with the least rights: REPLICATION, CREATE on the database, and membership in the
    role `app` that owns schema `app` and its tables.
    """
    admin.execute("CREATE ROLE app")
    admin.execute("CREATE ROLE capture LOGIN REPLICATION")
    admin.execute("GRANT app TO capture")
    admin.execute("CREATE SCHEMA app AUTHORIZATION app")
    grant = sql.SQL("GRANT CREATE ON DATABASE {} TO capture")
    admin.execute(grant.format(sql.Identifier(source.name)))
    return make_conninfo(source.dsn, user="capture")


@pytest.fixture
def capture(capture_dsn: str) -> Iterator[Connection]:
    """That role's session."""
    with connect(capture_dsn) as conn:
        yield conn


@pytest.fixture
def app(source: Database, capture_dsn: str) -> Iterator[Connection]:
    """The application's session, as the owner of its tables."""
    with connect(source.dsn, application_name="shop") as conn:
        conn.execute("SET ROLE app")
        conn.execute("SET search_path TO app")
        yield conn
