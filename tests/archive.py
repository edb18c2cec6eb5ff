"""Keeps the classes that Spark loads in an archive beside the virtual environment.

A JVM that is given the archive (`java_options`) starts a session in half the time, and the tests
start many. `python -m tests.archive` makes it by delivering a small log once; a Java that cannot
make one goes without. It also fetches the jars, which else every worker would at the same time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from tailrace.spark.java import find_java
from tailrace.storage import FileStore
from tests.jars import fetch
from tests.spark.made_log import MadeLog, Table
from tests.streams.killing import Driver

_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Code ends here before it pays to optimise it."""


def java_options() -> str:
    """Options under which a JVM of the tests starts soonest; an archive that is not there, or was
    made by another Java, is passed over.
    """
    return f"{_QUICK} -XX:SharedArchiveFile={_path()}"


def _path() -> Path:
    return Path(sys.prefix, f"spark-java-{find_java().version}.jsa")


def main() -> None:
    """Fetch the jars and make the archive, if they are not there."""
    fetch()
    if _path().exists():
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-archive-", dir=sys.prefix) as directory:
        made = Path(directory, "made.jsa")
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_QUICK} -XX:ArchiveClassesAtExit={made}"
        log = MadeLog(FileStore(Path(directory, "log")))
        log.insert(Table(), 1, 20)
        driver = Driver(log, Path(directory))
        if driver.run(until=log.end) != 0:
            sys.exit(driver.output)
        if made.exists():
            made.rename(_path())


if __name__ == "__main__":
    main()
