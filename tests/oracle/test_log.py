"""Eight writers, capture killed again and again: the log, folded, is the source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.oracle.run import COMMITTED_MIN, KILLS_MIN, run_log
from tests.server import VERSIONS, Servers, both_versions

SEED = int(os.environ.get("ORACLE_SEED", "1"))
SECONDS = float(os.environ.get("ORACLE_S", "40"))


@pytest.mark.slow
@both_versions
def test_f081_the_log_of_eight_writers_is_the_source_whenever_capture_dies(
    source_servers: Servers, tmp_path: Path, version: int
) -> None:
    with source_servers(version).database() as database:
        outcome = run_log(database, tmp_path, seed=SEED, seconds=SECONDS / len(VERSIONS))
    assert outcome.committed >= COMMITTED_MIN
    assert outcome.kills >= KILLS_MIN
