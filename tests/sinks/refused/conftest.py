"""Target databases with a place for dead letters, in both modes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tailrace.sinks.columns import Mode
from tailrace.sinks.postgres import sink as postgres_sink
from tests.server import Database
from tests.sinks.change_harness import PostgresChanges
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.refusing import (
    LetterStore,
)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are carried out when a test says so."""
    monkeypatch.setattr(postgres_sink, "REQUESTS_S", 3600.0)


@pytest.fixture
def store() -> LetterStore:
    return LetterStore()


@pytest.fixture
def copy(database: Database, store: LetterStore) -> Iterator[PostgresHarness]:
    with closing(PostgresHarness(database, store=store)) as harness:
        yield harness


@pytest.fixture
def changes(database: Database, store: LetterStore) -> Iterator[PostgresChanges]:
    with closing(PostgresChanges(database, Mode.APPEND, store=store)) as harness:
        yield harness
