"""What one run of the benchmarks is told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).absolute().parent.parent
"""The checkout: programs are run from here."""

_ROWS: Final = 1_000_000
_QUICK_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Options:
    """`rows` is the size of the backlog; each benchmark says what it makes of it.

    `quick` is for looking whether everything works: its figures mean nothing. `full` adds what
    takes long: ten times the rows. `directory` holds all that is written while measuring, so it
    must be on the disk that is meant.
    """

    directory: Path
    rows: int = _ROWS
    rounds: int = 5
    quick: bool = False
    full: bool = False
    postgres: int = 18

    @classmethod
    def of(
        cls, *, rows: int | None, rounds: int | None, quick: bool, postgres: int, directory: Path
    ) -> Self:
        """What the command line says, else the environment, else the defaults."""
        default_rows = _QUICK_ROWS if quick else _ROWS
        default_rounds = 1 if quick else 5
        return cls(
            directory=directory,
            rows=rows or int(os.environ.get("BENCH_ROWS", default_rows)),
            rounds=rounds or int(os.environ.get("BENCH_ROUNDS", default_rounds)),
            quick=quick,
            full=os.environ.get("BENCH_FULL", "") not in ("", "0"),
            postgres=postgres,
        )
