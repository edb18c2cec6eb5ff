"""Eight writers, capture killed again and again: the log, folded, is the source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.oracle.run import run_log
from tests.server import Database

SEED = int(os.environ.get("ORACLE_SEED", "1"))
SECONDS = float(os.environ.get("ORACLE_S", "30"))


@pytest.mark.slow
def test_f081_the_log_of_eight_writers_is_the_source_whenever_capture_dies(
    database: Database, tmp_path: Path
) -> None:
    outcome = run_log(database, tmp_path, seed=SEED, seconds=SECONDS)
    assert outcome.committed > 100
    assert outcome.kills > 1
