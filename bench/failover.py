"""`failover`: from the death of the node that leads to the first record of the one that stood by.

Two nodes capture and deliver one stream to a webhook, in processes of their own and without Spark,
which has no part in who leads; its start would be most of the time of a node that is started, and
nothing of one that stands by. The leader is killed while a writer commits all the time; what counts
is the first record that was committed after that. Beside it: a process is started that does nothing
but connect and read one change.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from psycopg.types.json import Jsonb

from bench.child import Child, ProgramFailed
from bench.receiver import receiver
from bench.report import Report, ratio_line
from bench.source import Source
from bench.workbench import Workbench
from tailrace.control.schema import migrate

_STREAM: Final = "hook"
_PAUSE_S: Final = 0.005
_PATIENCE_S: Final = 60.0


class Arrivals:
    """When each row came first."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._news = threading.Condition()

    def take(self, body: bytes) -> None:
        """One request of the webhook."""
        at = time.monotonic()
        rows = [each["after"] for each in json.loads(body)["messages"]]
        with self._news:
            for row in rows:
                if row is not None:
                    self._seen.setdefault(row["id"], at)
            self._news.notify_all()

    def first_after(self, row_id: int) -> float:
        """When the first row came whose id is greater; waits for it."""
        with self._news:
            if not self._news.wait_for(lambda: max(self._seen, default=0) > row_id, _PATIENCE_S):
                raise ProgramFailed(f"no row came after {row_id}")
            return min(at for seen, at in self._seen.items() if seen > row_id)


class Writer:
    """Commits one row after the other; the last one that is committed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stop = threading.Event()
        self.last_id = 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the block runs."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        with self._source.connect() as conn:
            while not self._stop.wait(_PAUSE_S):
                conn.execute("INSERT INTO public.t VALUES (%s)", (self.last_id + 1,))
                self.last_id += 1


def run(workbench: Workbench) -> Report:
    """Measure."""
    arrivals = Arrivals()
    with workbench.source("failover") as source, receiver(arrivals.take) as url:
        with source.connect() as conn:
            conn.execute("CREATE TABLE public.t (id bigint PRIMARY KEY)")
            migrate(conn)
            conn.execute(
                "INSERT INTO tailrace.streams (source, name, sink) VALUES (%s, %s, %s)",
                (source.names.slot, _STREAM, Jsonb({"type": "memory"})),
            )
        source.begin()
        writer = Writer(source)
        with writer.at_work():
            beside = [_time_first_change(source) for _ in range(workbench.options.rounds)]
            with source.slot(source.names.slot):
                ours = _take_over(workbench, source, url, writer, arrivals)
    line = ratio_line(
        "kill -9 to the first record",
        "s",
        ours,
        beside,
        None,
        beside_name="to start, connect and read one change",
    )
    samples = [
        {"failover_s": mine, "start_s": other} for mine, other in zip(ours, beside, strict=True)
    ]
    return Report(
        "failover", [line], samples, {"spark": False}, notes=["both nodes run without Spark"]
    )


def _time_first_change(source: Source) -> float:
    with source.slot() as slot:
        task = {
            "dsn": source.database.dsn,
            "slot": slot,
            "publication": source.names.publication,
        }
        began = time.monotonic()
        with Child("first_change", task, log=source.directory / "first_change.log") as child:
            return float(child.event("read")["at"]) - began


def _take_over(
    workbench: Workbench, source: Source, url: str, writer: Writer, arrivals: Arrivals
) -> list[float]:
    """The leader is killed and the other one leads, again and again."""
    log = source.new_log()
    seconds = []
    leader = _node(source, log, url)
    try:
        leader.event("leads")
        for number in range(workbench.options.rounds):
            standby = _node(source, log, url)
            try:
                standby.event("standby")
                arrivals.first_after(writer.last_id)
                leader.kill()
                killed_at, last_id = time.monotonic(), writer.last_id
                seconds.append(arrivals.first_after(last_id + 1) - killed_at)
                standby.event("leads")
            finally:
                leader.stop(patient=False)
                leader = standby
            workbench.say(f"round {number + 1} after {seconds[-1]:.2f} s")
    finally:
        leader.stop()
    return seconds


def _node(source: Source, log: Path, url: str) -> Child:
    task = {
        "dsn": source.database.dsn,
        "source": source.name,
        "log": log.as_uri(),
        "stream": _STREAM,
        "url": url,
    }
    return Child("node", task, log=source.directory / "node.log")
