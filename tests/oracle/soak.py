"""Runs the oracle for as long as asked: `python -m tests.oracle.soak [SECONDS [SEED]]`.

Each round has a seed of its own, counted from the first, and a fresh database. The first round that
fails ends the soak, with its seed and what was left behind.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from random import SystemRandom

from tests.oracle.run import run_everything, run_log
from tests.server import FAST_SETTINGS, Server

ROUND_S = 60.0
LIFE_S = 15.0


def main(seconds: float, seed: int) -> None:
    """Round after round: the log alone, which is quick, then everything."""
    directory = Path(tempfile.mkdtemp(prefix="tailrace-soak-"))
    directory.chmod(0o711)
    end = time.monotonic() + seconds
    server = Server(directory / "server", settings=FAST_SETTINGS, tcp=True)
    with server:
        while (left := end - time.monotonic()) > 0:
            _round(server, directory / f"seed-{seed}", seed, seconds=min(ROUND_S, left))
            seed += 1
    server.destroy()


def _round(server: Server, place: Path, seed: int, *, seconds: float) -> None:
    _say(f"seed {seed} in {place}")
    for name, run in (("log", run_log), ("lake", partial(run_everything, life_s=LIFE_S))):
        (place / name).mkdir(parents=True)
        with server.database() as database:
            outcome = run(database, place / name, seed=seed, seconds=seconds)
        _say(f"seed {seed} {name} equal: {outcome}")
    shutil.rmtree(place)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        float(given[0]) if given else 600.0,
        int(given[1]) if len(given) > 1 else SystemRandom().randrange(1_000_000),
    )
