"""A real file system of a few MiB, so that a disk can be full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, *, owner: int = 0) -> Iterator[Path]:
    """One MiB at `place`, which is made; it belongs to the account `owner`."""
    if os.geteuid() != 0:
        pytest.skip("a disk of one MiB must be mounted, which needs root: run the tests as root")
    place.mkdir()
    options = f"size=1m,mode=700,uid={owner}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tailrace-test", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a disk of one MiB cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
