"""A real file system of a few MiB, so that a disk can be full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_OTHERWISE = "run the tests as root where mounting is allowed; a simulated one is tested anyway"


@contextmanager
def small_disk(place: Path, *, owner: int = 0) -> Iterator[Path]:
    """One MiB at `place`, which is made; it belongs to the account `owner`."""
    if os.geteuid() != 0:
        pytest.skip(f"a disk of one MiB must be mounted, which needs root; {_OTHERWISE}")
    place.mkdir()
    options = f"size=1m,mode=700,uid={owner}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tailrace-test", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"root may not mount a disk here: {mounted.stderr.strip()}; {_OTHERWISE}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
