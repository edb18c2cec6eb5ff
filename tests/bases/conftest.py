"""Databases on both ends of the versions at hand, and a store for the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.bases import stretch
from tailrace.storage import FileStore
from tests.server import VERSIONS, Database


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def version(request: pytest.FixtureRequest) -> int:
    """Every database here is one of each version."""
    return int(request.param)


@pytest.fixture
def source(database: Database) -> Iterator[psycopg.Connection]:
    """A connection to a database that holds public.t, with rows."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE public.t (id bigint PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) AS g")
        yield connection


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Where the log goes."""
    return FileStore(tmp_path / "log")


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages each, so that a small table has many."""
    monkeypatch.setattr(stretch, "PAGES_MIN", 2)
    monkeypatch.setattr(stretch, "PAGES_MAX", 2)
