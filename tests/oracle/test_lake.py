"""Eight writers, capture and pipeline killed: log and lake are the source, in every mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.oracle.run import COMMITTED_MIN, run_everything
from tests.server import Database

SEED = int(os.environ.get("ORACLE_SEED", "1"))
SECONDS = float(os.environ.get("ORACLE_S", "20"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_f081_log_and_lake_of_eight_writers_are_the_source_whoever_dies(
    database: Database, tmp_path: Path
) -> None:
    outcome = run_everything(
        database, tmp_path, seed=SEED, seconds=SECONDS, life_s=max(10.0, SECONDS / 3)
    )
    assert outcome.committed >= COMMITTED_MIN
