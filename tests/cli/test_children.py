"""Commands as child processes: their failure is told, and none outlives its parent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailrace.cli.children import Child, Children
from tests.cli.processes import await_none, working_on
from tests.cli.project import TIMEOUT_S, Project
from tests.server import Database


def await_end(children: Children) -> Child:
    deadline = time.monotonic() + TIMEOUT_S
    while children.ended is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return children.ended


@pytest.mark.slow
def test_the_reason_of_a_failure_is_the_last_word(project: Project) -> None:
    project.configure("postgresql://ann@127.0.0.1:1/shop")
    log = project.directory / "capture.log"
    with Children() as children:
        children.start("capture", ["--config", str(project.config)], log=log)
        child = await_end(children)
    assert child.status == 1
    assert child.error == "capture has failed: nothing listens at 127.0.0.1:1"


def test_a_child_ends_with_the_block_and_is_asked_first(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn)
    log = project.directory / "capture.log"
    with Children() as children:
        children.start("capture", ["--config", str(project.config)], log=log)
        while "streaming slot=" not in log.read_text():
            assert children.ended is None, log.read_text()
            time.sleep(0.05)
    assert "stopped slot=" in log.read_text()
    assert not working_on(project.directory)


PARENT = """
import sys, time
from tailrace.cli.children import Children
with Children() as children:
    children.start("capture", ["--config", sys.argv[1]])
    time.sleep(600)
"""


@pytest.mark.parametrize("is_streaming", [True, False])
def test_a_child_ends_when_its_parent_is_killed(
    project: Project, database: Database, is_streaming: bool
) -> None:
    project.configure(database.dsn)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(project.config)], stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        if is_streaming:
            assert any("streaming slot=" in line for line in parent.stderr)
        else:
            _await_child(project.directory)
        parent.kill()
        await_none(project.directory)


def _await_child(directory: Path) -> None:
    while not any(" capture " in line for _, line in working_on(directory)):
        time.sleep(0.05)
