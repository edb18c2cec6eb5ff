"""A database with a few tables, a connection to it, and a store for the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.storage import FileStore
from tests.server import Database


@pytest.fixture
def source(database: Database) -> Iterator[psycopg.Connection]:
    """A connection to a database that holds the empty table public.t."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE public.t (id bigint PRIMARY KEY, v text)")
        yield connection


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Where the log goes."""
    return FileStore(tmp_path / "log")
