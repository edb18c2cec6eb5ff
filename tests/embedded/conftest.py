"""Fixtures of the embedded server's own tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def data_dir(server_dir: Path) -> Iterator[Path]:
    """The path of a cluster that does not exist yet."""
    directory = Path(tempfile.mkdtemp(prefix="own-", dir=server_dir))
    directory.chmod(0o711)
    yield directory / "data"
    shutil.rmtree(directory, ignore_errors=True)
