"""Postgres is restarted between any two steps of a hand-over or a drain, under writers.

In the end the log holds each change that was committed, once, and those of a row in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tailrace import failpoint
from tailrace.errors import SourceError
from tests.capture.hybrid.stage import Stage
from tests.capture.hybrid.test_handover_deaths import BACK, DRAIN, SLOT_BEGINS, TO_THE_WAL
from tests.capture.running import Running, wait_until
from tests.dying import met_at
from tests.server import Server, ServerFactory


def _restarted_at(
    steps: Sequence[str],
    mode: str,
    state: str,
    stage: Stage,
    server: Server,
    patch: pytest.MonkeyPatch,
) -> None:
    """Capture until every table is in this state; at each step the server is gone for a moment."""
    left, was_last = list(steps[1:]), threading.Event()

    def restart(_status: int) -> None:
        server.restart(immediate=len(left) % 2 == 0)
        if not left:
            was_last.set()
            return
        name, _, count = left.pop(0).partition(":")
        patch.setattr(failpoint, "_name", name)
        patch.setattr(failpoint, "_left", int(count or 1))

    with met_at(steps[0], restart, patch):
        for _ in range(1 + len(steps)):
            # Who has not yet begun says what is wrong and ends; it is started again.
            with suppress(SourceError), Running(stage.told(mode), stage.store) as capture:
                wait_until(lambda: was_last.is_set() or capture.error is not None)
            if was_last.is_set():
                break
    assert was_last.is_set(), "not all steps came"
    stage.live_until(mode, state)


def test_f075_postgres_is_restarted_between_any_two_steps_of_hand_overs_both_ways(
    postgres_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_server({})
    with server.database() as database:
        stage = Stage(database, tmp_path)
        stage.live_until("trigger", "TRIGGER")
        with stage.writing():
            _restarted_at(TO_THE_WAL, "auto", "WAL", stage, server, monkeypatch)
            _restarted_at(BACK, "trigger", "TRIGGER", stage, server, monkeypatch)
        stage.settle("trigger")


def test_f081_postgres_is_restarted_between_any_two_steps_of_drains_and_while_a_slot_begins(
    postgres_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_server({"wal_level": "replica"})
    with server.database() as database:
        stage = Stage(database, tmp_path)
        stage.live_until("auto", "TRIGGER")
        with stage.writing():
            _restarted_at(DRAIN, "auto", "TRIGGER", stage, server, monkeypatch)
            server.settings["wal_level"] = "logical"
            server.restart()
            _restarted_at(SLOT_BEGINS, "auto", "WAL", stage, server, monkeypatch)
        stage.settle("auto")
