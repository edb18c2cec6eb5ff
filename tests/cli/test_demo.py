"""`tailrace demo`: ends with the proof, also when stopped early, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from rich.console import Console

from tailrace.cli.demonstration import Demonstration
from tailrace.embedded import EmbeddedPostgres, running_dsn
from tailrace.embedded.lock import acquire
from tailrace.errors import ConfigError, TailraceError
from tests.cli.processes import await_none, working_on
from tests.cli.project import Running


@pytest.fixture
def directory(server_dir: Path, tmp_path: Path) -> Path:
    """Where the demo keeps everything."""
    return server_dir / tmp_path.name / "demo"


@contextmanager
def demo(directory: Path, *options: str) -> Iterator[Running]:
    directory.parent.mkdir(exist_ok=True)
    running = Running(["demo", "--dir", str(directory), *options], cwd=directory.parent)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.wait()
        await_none(directory)
        assert running_dsn(directory / ".tailrace" / "postgres") is None


@pytest.mark.slow
def test_the_demo_proves_the_lake_and_would_see_a_difference(directory: Path) -> None:
    with demo(directory, "--seconds", "600", "--rate", "50") as running:
        running.await_line("writing: ")
        ended = running.stop(signal.SIGINT)
        assert ended.code == 0, ended.err
        assert "at rest: " in ended.err and "lag=0 ms" in ended.err
        assert "every lake table equals its source" in ended.err
        for shown in re.findall(r"^  (\S+tailrace log .*)$", ended.err, re.MULTILINE):
            assert subprocess.run(shlex.split(shown), capture_output=True).returncode == 0
        assert not working_on(directory)

    out = io.StringIO()
    show = Demonstration(Console(file=out, width=200), directory, threading.Event())
    with EmbeddedPostgres(directory / ".tailrace" / "postgres") as server:
        assert show.prove(server.dsn)
        customers = DeltaTable(str(directory / "lake" / "public" / "customers"))
        customers.update(updates={"name": "'Mallory'"}, predicate="id = 1")
        customers.delete("id = 2")
        assert not show.prove(server.dsn)
    text = out.getvalue()
    assert "the lake differs from its source" in text
    assert re.search(r"public\.customers: id='1' differs: name is '.*', in the lake 'Mal", text)
    assert "public.customers: id='2' is not in the lake" in text


@pytest.mark.slow
def test_the_hybrid_demo_hands_every_table_over_and_proves_the_lake(directory: Path) -> None:
    with demo(directory, "--hybrid", "--seconds", "6", "--rate", "50") as running:
        ended = running.wait()
        assert ended.code == 0, ended.err
        assert "tables by triggers" in ended.err
        assert "every lake table equals its source" in ended.err
    with (
        EmbeddedPostgres(directory / ".tailrace" / "postgres") as server,
        psycopg.connect(server.dsn) as connection,
    ):
        modes = connection.execute("SELECT DISTINCT cdc_mode FROM tailrace.stat_tables")
        assert modes.fetchall() == [("WAL",)]


def test_stopped_during_the_start_it_ends_in_order(directory: Path) -> None:
    with demo(directory) as running:
        running.await_line("starting capture")
        ended = running.stop(signal.SIGTERM)
        assert ended.code == 1
        assert ended.err.endswith("stopped during the start: there is nothing to prove\n")


def test_killed_it_leaves_nothing_and_can_start_again(directory: Path) -> None:
    with demo(directory) as first:
        first.await_line("starting spark")
        first.process.kill()
        first.wait()
        with demo(directory) as second:
            second.await_line("starting capture")
            second.stop(signal.SIGINT)


def test_only_what_is_a_demo_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    show = Demonstration(Console(file=io.StringIO()), tmp_path, threading.Event())
    with pytest.raises(TailraceError, match="is not empty, and not a demo's") as caught:
        show.run(1, writers=1, rate=1)
    assert "--dir" in caught.value.hint
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "demo.lock")
    try:
        show = Demonstration(Console(file=io.StringIO()), tmp_path / "demo", threading.Event())
        with pytest.raises(ConfigError, match=f"for process {os.getpid()}") as caught:
            show.run(1, writers=1, rate=1)
        assert "another directory" in caught.value.hint
    finally:
        os.close(lock)
