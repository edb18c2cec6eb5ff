"""Jars from Maven that tests need: Delta for Spark, Kafka's broker, and Spark's connector for it.

They are kept in the user's cache under a name made of the list, and put there whole: several
workers may fetch them at the same time. Spark's own way to fetch packages fails then.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from tailrace.spark.java import find_java

_LIST: Final = Path(__file__).with_suffix(".xml")
_TRIES: Final = 3
"""A repository may fail to answer once."""


def jars(part: str) -> list[str]:
    """The jars of `broker`, `connector` or `delta`."""
    return sorted(str(jar) for jar in (fetch() / part).glob("*.jar"))


def fetch() -> Path:
    """Where the jars are; they are fetched if they are not there."""
    name = hashlib.sha256(_LIST.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "tailrace-tests" / f"jars-{name}"
    if not place.is_dir():
        _retrieve(place)
    return place


def _retrieve(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        pattern = f"{directory}/jars/[conf]/[artifact]-[revision].[ext]"
        command = [str(find_java().program), "-jar", str(ivy), "-cache", f"{directory}/ivy"]
        command += ["-warn", "-ivy", str(_LIST), "-retrieve", pattern]
        for _ in range(_TRIES):
            done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stdout + done.stderr
        with suppress(OSError):  # another worker was quicker
            Path(directory, "jars").rename(place)
