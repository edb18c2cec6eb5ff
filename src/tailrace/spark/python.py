"""The Python that Spark starts for its work on this machine.

Spark puts archives of its modules before everything on the path of each process, and Python
compiles what it loads from an archive every time: most of a second of the processor, for half a
dozen processes of a session and one more of each query. Where PySpark is installed beside the
interpreter, Spark is given a `python` of ours, `python_home/bin/python`, which leaves the archives
out and starts the real one.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import pyspark


def worker_python() -> str:
    """What Spark is told to start in place of this interpreter."""
    ours = Path(__file__).with_name("python_home") / "bin" / "python"
    is_installed = str(Path(pyspark.__file__).parents[1]) in site.getsitepackages()
    # Some ways to install a package lose what makes a file a program.
    return str(ours) if is_installed and os.access(ours, os.X_OK) else sys.executable


def worker_environment() -> dict[str, str]:
    """The variables under which Spark starts it."""
    program = worker_python()
    return {
        "PYSPARK_PYTHON": program,
        "PYSPARK_DRIVER_PYTHON": program,
        "TAILRACE_PYTHON": sys.executable,
    }
