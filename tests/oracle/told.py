"""What the nodes of a soak are told: one source and log, and a stream to each kind of sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.oracle import journal
from tests.oracle.bad_servers import TIMEOUT_S

WINDOW: Final = 50
QUEUES: Final = ("hook", "kinesis")
STREAMS: Final = (*QUEUES, "copy", "lake", "files")


def configuration(directory: Path, dsns: list[str], sinks: dict[str, Any]) -> dict[str, Any]:
    """What a node is told; `dsns` are those of the source and of the other database."""
    tables = [f"{journal.SCHEMA}.{table}" for table in journal.TABLES]
    queue = {"window_count": WINDOW, "timeout": f"{TIMEOUT_S:.0f}s", "retry_max_elapsed": "5s"}
    streams = {
        "hook": {**queue, "type": "webhook", "batch_count": 20, **sinks["hook"]},
        "kinesis": {**queue, "type": "kinesis", "on_exhausted": "dead_letter", **sinks["kinesis"]},
        "copy": {"type": "postgres", "dsn": dsns[1]},
        "lake": {"type": "delta", "path": str(directory / "lake"), "engine": "deltalake"},
        "files": {"type": "parquet", "path": str(directory / "changes")},
    }
    return {
        "source": {"name": "main", "dsn": dsns[0]},
        "log": {"url": f"file:{directory / 'log'}"},
        "capture": {"mode": "wal", "tables": tables},
        "streams": {
            name: {"tables": tables, "sink": sink, "trigger_interval": "1s"}
            for name, sink in streams.items()
        },
    }
