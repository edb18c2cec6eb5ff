"""Runs the oracle for as long as asked: `python -m tests.oracle.soak [SECONDS [SEED]]`.

Each round has a seed of its own, counted from the first, and a fresh database. The first round that
fails ends the soak, with its seed and what was left behind.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom

from tests.oracle.run import run_log
from tests.server import FAST_SETTINGS, Server

ROUND_S = 60.0


def main(seconds: float, seed: int) -> None:
    """Round after round."""
    directory = Path(tempfile.mkdtemp(prefix="tailrace-soak-"))
    directory.chmod(0o711)
    end = time.monotonic() + seconds
    server = Server(directory / "server", settings=FAST_SETTINGS, tcp=True)
    with server:
        while time.monotonic() < end:
            place = directory / f"seed-{seed}"
            place.mkdir()
            _say(f"seed {seed} in {place}")
            with server.database() as database:
                outcome = run_log(
                    database, place, seed=seed, seconds=min(ROUND_S, end - time.monotonic())
                )
            _say(f"seed {seed} equal: {outcome}")
            seed += 1
    server.destroy()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        float(given[0]) if given else 600.0,
        int(given[1]) if len(given) > 1 else SystemRandom().randrange(1_000_000),
    )
