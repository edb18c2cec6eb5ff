"""Promises of measured programs: a failure is told with its reason, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.child import Child, ProgramFailed
from bench.options import ROOT


@pytest.mark.slow
def test_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    task = {"log": "nonsense:", "changes_max": 1, "call_changes": 0, "decoder": "ours"}
    with (
        Child("decode", task, log=tmp_path / "log") as child,
        pytest.raises(ProgramFailed, match="no store has the scheme"),
    ):
        child.event("done")


@pytest.mark.slow
@pytest.mark.server
def test_interrupted_run_stops_and_removes_everything(server_dir: Path) -> None:
    directory = server_dir / "interrupted"
    command = [sys.executable, "-m", "bench", "capture", "--rows", "1000000"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--directory", str(directory)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "writing a backlog" in line:
                break
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.stdout.read()
    assert process.returncode == 130
    assert not any(directory.iterdir())
