"""A session such as capture has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.postgres.session import Connection, connect
from tests.server import Database


@pytest.fixture
def conn(database: Database) -> Iterator[Connection]:
    """On the database of the test."""
    with connect(database.dsn) as session:
        yield session
