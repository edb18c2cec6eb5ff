"""A short run of the hand-over oracle; `make soak` has long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.handover import run_handover
from tests.server import ServerFactory


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "version"), [(1, 18), (2, 16)])
def test_f075_hand_overs_under_writers_kills_and_restarts_keep_every_change_once(
    postgres_server: ServerFactory, tmp_path: Path, seed: int, version: int
) -> None:
    server = postgres_server({"wal_level": "replica"}, version=version)
    outcome = run_handover(server, tmp_path, seed=seed, seconds=8)
    assert outcome.committed and outcome.deaths and outcome.there
