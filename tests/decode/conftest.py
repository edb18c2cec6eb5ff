"""Databases of both versions at hand, with a type of every sort."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.decode.kinds import TYPES_MADE
from tests.server import FAST_SETTINGS, Database, Server


@pytest.fixture(scope="session")
def postgres_16(server_dir: Path) -> Iterator[Server]:
    """The worker's Postgres 16."""
    server = Server(server_dir / "decode-16", version=16, settings=FAST_SETTINGS, tcp=False)
    with server:
        yield server
    server.destroy()


@pytest.fixture(params=["postgres", "postgres_16"], ids=["pg18", "pg16"])
def typed_database(request: pytest.FixtureRequest, server_dir: Path) -> Iterator[Database]:
    """A fresh database in which the types of `kinds` exist."""
    server: Server = request.getfixturevalue(request.param)
    with server.database() as fresh:
        with fresh.connect() as connection:
            connection.execute(TYPES_MADE)
        yield fresh
