"""The stores that the log is tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.storage import FileStore, MemoryStore, Store


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind that needs no server."""
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path / "log")
