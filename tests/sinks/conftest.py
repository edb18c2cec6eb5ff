"""A harness for each sink that the tests run over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tailrace.sinks.delta import DeltaOptions, Mode
from tests.server import Server
from tests.sinks.harness import QUIET, DeltaHarness, Harness, MemoryHarness, PostgresHarness

HISTORY: Final = replace(QUIET, mode=Mode.HISTORY)
SOFT_DELETE: Final = replace(QUIET, soft_delete=True)

SPARK: Final = [pytest.mark.spark, pytest.mark.server]

POSTGRES: Final = pytest.param("postgres", marks=pytest.mark.server)
FORMS: Final = ["memory", "deltalake", "deltalake history", "deltalake soft", POSTGRES]


@pytest.fixture(params=[*FORMS, pytest.param("delta-spark", marks=SPARK)])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Every sink that keeps rows, in every form; its rows are those that are there now."""
    yield from _harness(request, tmp_path)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Every form, for what the embedded library does whichever engine writes the batches."""
    yield from _harness(request, tmp_path)


@pytest.fixture(params=["memory", "deltalake", POSTGRES])
def replacing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Sinks that keep no older rows, so that a load may bring any shape."""
    yield from _harness(request, tmp_path)


@pytest.fixture(params=["deltalake", pytest.param("delta-spark", marks=SPARK)])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A lake of versions, written by each engine."""
    yield from _harness(request, tmp_path, HISTORY)


@pytest.fixture(params=["deltalake", pytest.param("delta-spark", marks=SPARK)])
def graveyard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A lake that keeps what was deleted, written by each engine."""
    yield from _harness(request, tmp_path, SOFT_DELETE)


@pytest.fixture(params=["deltalake", pytest.param("delta-spark", marks=SPARK)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A lake written by each engine."""
    yield from _harness(request, tmp_path)


def _harness(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    options: DeltaOptions = QUIET,
) -> Iterator[Harness]:
    engine, _, form = str(request.param).partition(" ")
    if engine == "memory":
        yield MemoryHarness()
        return
    if engine == "postgres":
        server: Server = request.getfixturevalue("postgres")
        with server.database() as database, closing(PostgresHarness(database)) as copy:
            yield copy
        return
    session = request.getfixturevalue("delta_session") if engine == "delta-spark" else None
    options = {"history": HISTORY, "soft": SOFT_DELETE}.get(form, options)
    lake = DeltaHarness(str(tmp_path / "lake"), session, options)
    yield lake
    lake.close()
