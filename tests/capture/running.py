"""Capture at work beside a test: in a thread of it, or in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tailrace.capture import Daemon, Duties, Limits, Metrics, Settings
from tailrace.capture.modes import CaptureMode, HybridSettings, TableRules
from tailrace.log import Reader
from tailrace.log.merge import MergePolicy
from tailrace.model import Lsn
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import wal_position
from tailrace.storage import Store, open_store
from tests import nursery

ROOT = Path(__file__).parents[2]
NAMES = SourceNames.of("main")
PATIENCE_S = float(os.environ.get("PATIENCE_S", "60"))
"""A test that waits longer has failed. It never passes by waiting."""

FAST = Limits(
    progress_interval_s=0.1,
    status_interval_s=0.5,
    receive_timeout_s=20.0,
    stall_timeout_s=20.0,
)


def settings(
    dsn: str,
    *tables: str,
    inserts_only: Sequence[str] = (),
    limits: Limits = FAST,
    sender_timeout_s: int = 15,
    merge: MergePolicy | None = None,
    hybrid: HybridSettings | None = None,
) -> Settings:
    """What capture is told in a test."""
    duties = Duties(
        dsn=dsn,
        names=NAMES,
        selection=Selection(list(tables) or ["public.*"], inserts_only),
        heartbeat_interval_s=1.0,
        merge=merge or MergePolicy(),
        hybrid=hybrid or HybridSettings(),
    )
    return Settings(duties, limits, sender_timeout_s)


def hybrid(
    mode: str = "auto",
    *,
    poll_interval_s: float = 0.05,
    tables: Mapping[str, str] | None = None,
    lock_timeout_ms: int = 200,
    transition_timeout_s: float = 300.0,
    shadow_s: float = 0.0,
    auto_replica_identity: bool = False,
    handover_lag_bytes_max: int = 16 << 20,
) -> HybridSettings:
    """How tables are captured in a test; `tables` gives some of them a mode of their own."""
    rules = TableRules(
        mode=CaptureMode(mode),
        transition_timeout_s=transition_timeout_s,
        auto_replica_identity=auto_replica_identity,
        lock_timeout_ms=lock_timeout_ms,
        shadow_s=shadow_s,
        handover_lag_bytes_max=handover_lag_bytes_max,
    )
    of_some = [
        (pattern, replace(rules, mode=CaptureMode(own))) for pattern, own in (tables or {}).items()
    ]
    return HybridSettings(rules, of_some, poll_interval_s)


def wait_until(is_so: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    """Look again and again until it is so; fail if it never is."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@dataclass
class Running:
    """A daemon in a thread."""

    told: Settings
    store: Store
    error: BaseException | None = None
    metrics: Metrics = field(default_factory=lambda: Metrics("main"))
    stop_event: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="test-daemon")
        self._thread.start()
        return self

    def _run(self) -> None:
        daemon = Daemon(self.told, self.store, metrics=self.metrics, stop=self.stop_event)
        try:
            daemon.run()
        except BaseException as error:
            self.error = error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None and self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        self.stop_event.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "capture does not stop"

    def value(self, metric: str) -> float:
        """A number that it shows."""
        found = self.metrics.registry.get_sample_value(
            f"tailrace_capture_{metric}", {"source": "main"}
        )
        assert found is not None
        return found

    def tables(self, mode: str) -> float:
        """How many tables it shows in this mode."""
        labels = {"source": "main", "mode": mode}
        return self.metrics.registry.get_sample_value("tailrace_capture_tables", labels) or 0.0

    def wait_for_stream(self) -> None:
        """Until it streams, and has sent its first status."""
        self.wait_until(lambda: self.value("acknowledged_lsn") > 0)

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """As `wait_until`, but a daemon that has ended fails at once."""

        def look() -> bool:
            assert self._thread.is_alive(), f"capture has ended: {self.error!r}"
            return bool(is_so())

        wait_until(look)

    def fails_with(self, kind: type[BaseException]) -> BaseException:
        """Wait until it ends by itself; gives the error it ended with."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "capture goes on"
        assert isinstance(self.error, kind), f"{self.error!r}"
        error, self.error = self.error, None
        return error


def tip(store: Store) -> Lsn:
    """Where the log ends."""
    return Reader(store).tip().position


def wait_caught_up(running: Running, connection: psycopg.Connection) -> None:
    """Until the log has all that has been committed so far."""
    end = wal_position(connection)
    running.wait_until(lambda: running.value("durable_lsn") >= end)


def wait_acknowledged(running: Running, connection: psycopg.Connection) -> None:
    """Until Postgres has let go of all that it has written so far."""
    end = wal_position(connection)
    running.wait_until(lambda: confirmed(connection) >= end)


def published(connection: psycopg.Connection) -> set[tuple[str, str]]:
    """The publications and the tables that they name.

    Not by pg_publication_tables: it opens each table, and fails if one is dropped meanwhile.
    """
    query = """SELECT pubname, relname FROM pg_publication_rel r
                 JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid"""
    return set(connection.execute(query).fetchall())


def is_published(connection: psycopg.Connection, table: str) -> bool:
    """Whether capture has taken the table up."""
    return len([name for _, name in published(connection) if name == table]) == 1


def confirmed(connection: psycopg.Connection, slot: str = NAMES.slot) -> Lsn:
    """What Postgres believes that we have."""
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    row = connection.execute(query, [slot]).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def _capture(argument: str) -> None:
    # It needs this module itself.
    from tests.capture.process import main

    main(argument)


class CaptureProcess:
    """A capture in a process of its own, which can be killed."""

    def __init__(
        self,
        told: Settings,
        log_url: str,
        output: Path,
        *,
        failpoint: str = "",
    ) -> None:
        self.log_url = log_url
        self._output = output
        argument = json.dumps(
            {
                "dsn": told.duties.dsn,
                "tables": list(told.duties.selection.patterns),
                "limits": asdict(told.limits),
                "merge": asdict(told.duties.merge),
                "sender_timeout_s": told.sender_timeout_s,
                "hybrid": asdict(told.duties.hybrid),
                "log_url": log_url,
            }
        )
        self._process = nursery.start(_capture, argument, failpoint=failpoint, output=output)

    @property
    def pid(self) -> int:
        """For what the operating system tells."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it is still there."""
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Until it has ended; its status."""
        self._process.join(PATIENCE_S)
        assert self._process.exitcode is not None, f"capture goes on: {self.said()}"
        return self._process.exitcode

    def kill(self) -> None:
        """As `kill -9`."""
        self._process.kill()
        self.wait()

    def terminate(self) -> int:
        """Ask it to end; its status."""
        self.send(signal.SIGTERM)
        return self.wait()

    def said(self) -> str:
        """What it wrote so far."""
        return self._output.read_text()

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """Until it is so; a process that has ended fails at once."""

        def look() -> bool:
            assert self.is_running, self.said()
            return bool(is_so())

        try:
            wait_until(look)
        except AssertionError as error:
            error.add_note(f"capture said:\n{self.said()}")
            raise

    def wait_caught_up(self, connection: psycopg.Connection) -> None:
        """Until the log has all that has been committed so far."""
        end = wal_position(connection)
        store = open_store(self.log_url)
        self.wait_until(lambda: _has_begun(store) and tip(store) >= end)

    def wait_published(self, connection: psycopg.Connection, table: str = "t") -> None:
        """Until it has taken the table up."""
        self.wait_until(lambda: is_published(connection, table))


def _has_begun(store: Store) -> bool:
    return bool(store.list("segments/"))


@contextmanager
def process(
    told: Settings,
    log_url: str,
    output: Path,
    *,
    failpoint: str = "",
) -> Iterator[CaptureProcess]:
    """A capture process that does not outlive the test."""
    made = CaptureProcess(told, log_url, output, failpoint=failpoint)
    try:
        yield made
    finally:
        if made.is_running:
            made.kill()
