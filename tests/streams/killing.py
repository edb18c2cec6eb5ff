"""A delivery in a process of its own, that is killed; and what must be left of it: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from tailrace.log.retention import reader_positions
from tailrace.model import Lsn, Offset
from tailrace.sinks.delta.spark import SESSION_SETTINGS
from tailrace.storage import open_store
from tests import nursery
from tests.capture.running import ROOT, wait_until
from tests.spark.made_log import MadeLog, Table
from tests.streams.process import MODES, Task, deliver_by_hand, main
from tests.streams.running import PATIENCE_S, lake_rows, lake_table

NEVER = "7F/FFFFFFFF"


class Driver:
    """Delivers one log into one directory, again and again."""

    def __init__(
        self,
        log: MadeLog,
        directory: Path,
        *,
        packages: tuple[str, ...] = (),
        changes_max: int = 4,
    ) -> None:
        """With `packages`, which must hold Delta on Spark, the lake is written by that."""
        self._log = log
        self._directory = directory
        self._task = Task(log.store.url, str(directory), True, NEVER, changes_max)
        if packages:
            self._task = replace(
                self._task, engine="delta-spark", packages=packages, settings=SESSION_SETTINGS
            )

    @contextmanager
    def start(
        self, *, until: str = NEVER, failpoint: str = ""
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The running process; afterwards it and all that it started must end by themselves."""
        task = replace(self._task, until=until)
        command = [sys.executable, "-m", "tests.streams.process", json.dumps(asdict(task))]
        with (
            (self._directory / "output.txt").open("ab") as output,
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "TAILRACE_FAILPOINT": failpoint},
                stdout=output,
                stderr=output,
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process
                process.wait(PATIENCE_S)
                wait_until(lambda: not _session(process.pid), patience_s=PATIENCE_S)
            finally:
                for pid in _session(process.pid):
                    os.kill(pid, signal.SIGKILL)

    def run(self, *, until: Offset | None = None, failpoint: str = "") -> int:
        """Run until it ends by itself; its exit status."""
        with self.start(until=str(until or NEVER), failpoint=failpoint) as process:
            return process.wait(PATIENCE_S)

    def die(self, failpoint: str) -> None:
        """Deliver without Spark as far as this step, and die there."""
        task = json.dumps(asdict(replace(self._task, on_spark=False)))
        nursery.die(main, task, failpoint=failpoint, output=self._directory / "output.txt")

    def finish(self) -> None:
        """Deliver the rest, in this process, without Spark."""
        deliver_by_hand(replace(self._task, engine="deltalake"))

    @property
    def position(self) -> Lsn:
        """How far the slower stream is."""
        positions = reader_positions(open_store(self._task.log))
        return min(positions.get(name, self._log.begin.commit_lsn) for name in MODES)

    def check(self, table: Table, change_count: int) -> None:
        """The lake is what the log folds to, and the history is the log, each change once."""
        name = table.relation.qualified.replace(".", "/")
        assert lake_rows(self._directory / "lake", name) == table.rows, self.output
        rows = lake_table(self._directory / "history", name).select(["_commit_lsn", "_ordinal"])
        offsets = [tuple(row.values()) for row in rows.to_pylist()]
        assert len(offsets) == len(set(offsets)) == change_count, self.output

    @property
    def output(self) -> str:
        """What all its processes have said."""
        return (self._directory / "output.txt").read_text()


def _session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z" and int(fields[3]) == leader:
            found.append(int(path.parent.name))
    return found
