"""The sides of a comparison, each run once over a whole backlog."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from bench.child import Child, ProgramFailed
from bench.source import Backlog, Source

_STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of one side; `memory_mb` is 0 where it does not matter."""

    side: str
    transport: str
    changes: int
    seconds: float
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    segments: int = 0

    @property
    def rate(self) -> float:
        """Changes per second."""
        return self.changes / self.seconds

    def sample(self, **facts: object) -> dict[str, object]:
        """For the file of results."""
        return {**facts, **asdict(self), "rate": self.rate}


def run_capture(source: Source, backlog: Backlog, transport: str) -> Reading:
    """The real daemon, until everything is durable in its log."""
    with source.capture(transport, backlog.changes) as child:
        done = child.event("done")
    return Reading(
        "capture",
        transport,
        backlog.changes,
        done["seconds"],
        done["cpu_s"],
        done["memory_mb"],
        int(done["segments"]),
    )


def run_bare(source: Source, backlog: Backlog, transport: str) -> Reading:
    """The same client library, throwing away what it reads."""
    with source.slot() as slot:
        task = {
            "dsn": source.database.address(transport),
            "slot": slot,
            "publication": source.names.publication,
            "end": int(backlog.end),
        }
        with Child("bare", task, log=source.directory / "bare.log") as child:
            done = child.event("done")
    return Reading(
        "bare", transport, backlog.changes, done["seconds"], done["cpu_s"], done["memory_mb"]
    )


def run_recvlogical(source: Source, backlog: Backlog, transport: str) -> Reading:
    """Postgres' own client, to a file that it syncs; from `streaming initiated` to its end."""
    address = source.database.address(transport)
    with _recvlogical(source, address, f"--endpos={backlog.end}") as process:
        said = _until_streaming(process)
        began = time.monotonic()
        assert process.stderr is not None
        said += [line.strip() for line in process.stderr]
        status = process.wait()
        ended = time.monotonic()
    if status:
        raise ProgramFailed(f"pg_recvlogical ended with {status}: {' '.join(said[-3:])}")
    return Reading("pg_recvlogical", transport, backlog.changes, ended - began)


@contextmanager
def _recvlogical(source: Source, address: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    output = source.directory / "recvlogical.out"
    with source.slot() as slot:
        command = [
            str(source.database.bin_dir / "pg_recvlogical"),
            f"--dbname={address}",
            f"--slot={slot}",
            f"--file={output}",
            "--option=proto_version=1",
            f"--option=publication_names={source.names.publication}",
            "--start",
            "--no-loop",
            "--verbose",
            *options,
        ]
        with _running(command) as process:
            yield process
    output.unlink(missing_ok=True)


def _until_streaming(process: subprocess.Popen[str]) -> list[str]:
    """What it says until it streams."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line.strip())
        if "streaming initiated" in line:
            return said
    raise ProgramFailed(f"pg_recvlogical ended with {process.wait()}: {' '.join(said[-3:])}")


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"LC_ALL": "C"})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stderr is not None
        process.stderr.close()
