"""One owner for each data directory: a file that its owner locks and writes its process id into.

The descriptor is handed on to the processes that work on the directory for the owner. So the lock
is free only when they all have ended, and one that is held while its owner is dead soon will be.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from tailrace.errors import ConfigError

_LEAVE_TIMEOUT_S = 30.0
_POLL_S = 0.02


def acquire(path: Path) -> int:
    """Lock the file and return its descriptor, which may be inherited; close it to let go."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"cannot open {path}: {error.strerror}",
            hint="run as the user that made it, or name another directory",
        ) from error
    try:
        _wait(lock, path)
        os.truncate(lock, 0)
        os.write(lock, b"%d\n" % os.getpid())
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait(lock: int, path: Path) -> None:
    """Wait for the helpers of an owner that is dead, but not for one that lives."""
    deadline = time.monotonic() + _LEAVE_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            owner = os.pread(lock, 20, 0).strip()
            if _is_alive(owner) or time.monotonic() > deadline:
                raise ConfigError(
                    f"a postgres already runs on {path.with_suffix('')}"
                    f" for process {owner.decode()}",
                    hint="stop that process, or name another directory",
                ) from None
        time.sleep(_POLL_S)


def _is_alive(pid: bytes) -> bool:
    if not pid.isdigit():
        return True  # its owner is about to write it
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
