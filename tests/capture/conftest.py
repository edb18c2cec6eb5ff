"""A database with a few tables, a connection to it, a store for the log, and capture in haste."""

from __future__ import annotations

import logging
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


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """All that happens now and then happens often, and is told if the test fails."""
    monkeypatch.setattr("tailrace.capture.housekeeping.TABLES_INTERVAL_S", 0.1)
    monkeypatch.setattr("tailrace.capture.drains.leader.DETECT_INTERVAL_S", 0.1)
    caplog.set_level(logging.INFO)
