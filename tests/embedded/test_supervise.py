"""No server outlives its owner, whichever process is killed; no two owners share a directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import tailrace
from tailrace.embedded import running_dsn
from tailrace.embedded.account import Account
from tailrace.errors import ConfigError
from tests.embedded import owner as owner_program

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are found in /proc, which only Linux has"
)

_ENDS_WITHIN_S = 30


@contextmanager
def _owner(data_dir: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own group that owns the server on `data_dir`."""
    command = [sys.executable, owner_program.__file__, str(data_dir), *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _processes(data_dir: Path) -> set[int]:
    """Every process that works on the cluster: its supervisor, its postmaster, their children."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            works_there = Path(os.readlink(directory / "cwd")) == data_dir
            words = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        is_owner = os.fsencode(owner_program.__file__) in words
        if works_there or (os.fsencode(data_dir) in words and not is_owner):
            found.add(int(directory.name))
    return found


def _ends(data_dir: Path) -> bool:
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while _processes(data_dir):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return running_dsn(data_dir) is None


def _supervisor(data_dir: Path, owner: int) -> int:
    """The owner's child: the only process of the cluster with that parent."""
    for pid in _processes(data_dir):
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(status[1]) == owner:
            return pid
    raise AssertionError("the server has no supervisor")


def test_server_ends_with_an_owner_that_ends(data_dir: Path) -> None:
    with _owner(data_dir) as process:
        assert _said(process).startswith("postgresql://")
        process.communicate()
        assert _ends(data_dir)


@pytest.mark.parametrize("arguments", [(), ("fork",)], ids=["alone", "child-left-behind"])
def test_server_ends_with_an_owner_that_is_killed(
    data_dir: Path, arguments: tuple[str, ...]
) -> None:
    with _owner(data_dir, *arguments) as process:
        assert _said(process).startswith("postgresql://")
        assert len(_processes(data_dir)) > 2
        process.kill()
        process.wait()
        assert _ends(data_dir)
        if arguments:
            os.killpg(process.pid, signal.SIGKILL)


def test_server_ends_with_a_supervisor_that_is_killed(data_dir: Path) -> None:
    with _owner(data_dir) as process:
        assert _said(process).startswith("postgresql://")
        os.kill(_supervisor(data_dir, process.pid), signal.SIGKILL)
        assert _ends(data_dir)


def test_supervisor_told_to_terminate_stops_the_server(data_dir: Path) -> None:
    with _owner(data_dir) as process:
        assert _said(process).startswith("postgresql://")
        os.kill(_supervisor(data_dir, process.pid), signal.SIGTERM)
        assert _ends(data_dir)
        assert "database system is shut down" in data_dir.with_name("data.log").read_text()


def test_interrupt_from_the_terminal_leaves_the_server_to_its_owner(data_dir: Path) -> None:
    with _owner(data_dir) as process:
        dsn = _said(process)
        os.killpg(process.pid, signal.SIGINT)
        assert _said(process) == f"after SIGINT {dsn}"
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_of_two_owners_at_once_exactly_one_starts(data_dir: Path) -> None:
    with _owner(data_dir) as first, _owner(data_dir) as second:
        said = sorted([_said(first), _said(second)])
        assert said[0].startswith("ConfigError: a postgres already runs on"), said
        assert said[1].startswith("postgresql://"), said


@pytest.mark.parametrize("with_supervisor", [False, True])
def test_owner_starts_again_right_after_a_killed_one(data_dir: Path, with_supervisor: bool) -> None:
    with _owner(data_dir) as process:
        assert _said(process).startswith("postgresql://")
        supervisor = _supervisor(data_dir, process.pid)
        process.kill()
        if with_supervisor:
            os.kill(supervisor, signal.SIGKILL)
        process.wait()
        with _owner(data_dir) as successor:
            assert _said(successor).startswith("postgresql://")


def test_owner_starts_right_after_one_killed_while_it_made_the_cluster(data_dir: Path) -> None:
    draft = data_dir.with_name(data_dir.name + ".new")
    with _owner(data_dir) as process:
        while not (draft / "PG_VERSION").exists() and not data_dir.exists():
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        process.wait()
        with _owner(data_dir) as successor:
            assert _said(successor).startswith("postgresql://")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all other tests as such")
def test_ordinary_user_owns_a_server(data_dir: Path) -> None:
    nobody = Account.for_cluster(data_dir)
    nobody.give(data_dir.parent)
    # This run's interpreter may lie in a home that is closed to others; then the system's may do.
    packages = ":".join(str(Path(m.__file__ or "").parents[1]) for m in (tailrace, psycopg))
    environment = {**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(ConfigError):
            result = nobody.run([python, owner_program.__file__, str(data_dir)], env=environment)
            if result.stdout:
                break
    else:
        pytest.skip("every python here is closed to other accounts: run the tests as one of them")
    assert result.stdout.startswith("postgresql://"), result
    assert data_dir.stat().st_uid == nobody.uid
    assert _ends(data_dir)
