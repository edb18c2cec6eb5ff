"""Databases of both versions at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import FAST_SETTINGS, Database, Server


@pytest.fixture(scope="session")
def postgres_16(server_dir: Path) -> Iterator[Server]:
    """The worker's Postgres 16."""
    server = Server(server_dir / "decode-16", version=16, settings=FAST_SETTINGS, tcp=False)
    with server:
        yield server
    server.destroy()


@pytest.fixture(params=["postgres", "postgres_16"], ids=["pg18", "pg16"])
def source(request: pytest.FixtureRequest, server_dir: Path) -> Iterator[Database]:
    """A fresh database on each version."""
    server: Server = request.getfixturevalue(request.param)
    with server.database() as fresh:
        yield fresh
