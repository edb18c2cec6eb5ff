"""A log that has begun, and a session on a source that has the control schema."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tailrace.control.schema import migrate
from tailrace.postgres.session import connect
from tailrace.storage import MemoryStore, Store
from tests.log.making import begin
from tests.server import Database


@pytest.fixture
def store() -> Store:
    store = MemoryStore()
    begin(store)
    return store


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection]:
    with connect(database.dsn) as conn:
        migrate(conn)
        yield conn
