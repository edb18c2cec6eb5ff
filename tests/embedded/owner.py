"""A program that owns an embedded server until its input ends: what the tests kill.

Run as `python owner.py DATA_DIR [fork]`. It writes one line, the server's address or why it did not
start; with `fork`, a child of it stays behind that holds every descriptor open. A signal from the
terminal makes it write another address line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tailrace.embedded import EmbeddedPostgres, running_dsn
from tailrace.errors import TailraceError


def main(data_dir: Path, *, forks: bool) -> None:
    """Start, say so, and stay until the input ends."""
    server = EmbeddedPostgres(data_dir, settings={"fsync": "off"})
    signal.signal(signal.SIGINT, lambda *_: _say(f"after SIGINT {running_dsn(data_dir)}"))
    try:
        server.start()
    except TailraceError as error:
        _say(f"{type(error).__name__}: {error} ({error.hint})")
        return
    if forks and os.fork() == 0:
        os.close(sys.stdout.fileno())
        time.sleep(60)
        os._exit(0)
    _say(server.dsn)
    sys.stdin.read()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), forks="fork" in sys.argv[2:])
