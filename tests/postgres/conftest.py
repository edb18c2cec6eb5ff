"""Databases on both supported ends of the versions at hand, and a role that may do no more than it
must.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.postgres.session import Connection, connect
from tests.server import VERSIONS, Database


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def version(request: pytest.FixtureRequest) -> int:
    """Every database here is one of each version."""
    return int(request.param)


@pytest.fixture
def source(database: Database) -> Database:
    """The database that is captured."""
    return database


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
