"""A made log in files, which Spark's workers can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.storage import FileStore
from tests.spark.made_log import MadeLog


@pytest.fixture
def log(tmp_path: Path) -> MadeLog:
    """A log that has begun and is empty."""
    return MadeLog(FileStore(tmp_path / "log"))
