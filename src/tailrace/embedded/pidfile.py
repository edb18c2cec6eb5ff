"""The postmaster's own note about itself, `postmaster.pid`: the only record of a running server
that is never wrong for long.

Its lines, in order: process id, data directory, start time, port, socket directory, listen address,
shared memory, status (src/include/utils/pidfile.h). Lines are added while the server starts, so a
young file is short.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS_READY = "ready"


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What a postmaster says about itself."""

    pid: int
    port: int = 0
    socket_dir: str = ""
    is_ready: bool = False

    @property
    def has_process(self) -> bool:
        """Whether its process id is in use, be it by another program by now."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def is_alive(self, data_dir: Path) -> bool:
        """Whether the process exists and, where one can tell, is a server of that directory."""
        if not self.has_process or not sys.platform.startswith("linux"):
            return self.has_process
        # Containers hand out the same few ids again and again: a postmaster works in its data
        # directory, others do not.
        try:
            return Path(f"/proc/{self.pid}/cwd").samefile(data_dir)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True


def path_in(data_dir: Path) -> Path:
    """The file's place in a data directory."""
    return data_dir / "postmaster.pid"


def read(data_dir: Path) -> Postmaster | None:
    """The note in `data_dir`, whether or not its writer still lives; None if there is none."""
    try:
        lines = path_in(data_dir).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    if len(lines) < 8:
        return Postmaster(pid)
    return Postmaster(pid, int(lines[3]), lines[4], lines[7].strip() == _STATUS_READY)
