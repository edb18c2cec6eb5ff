"""What a leader does beside streaming: heartbeats, new tables, the publication, merge, retention.

It runs in a thread of its own, at its own pace, on a SQL session of its own; the stream never waits
for it. What fails is tried again at the next turn. A publication that was changed by hand is kept
in `failure`, as is a bug, and the stream ends with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import psycopg

from tailrace.capture.membership import Refusal
from tailrace.capture.metrics import Metrics
from tailrace.capture.modes import HybridSettings
from tailrace.capture.news import News
from tailrace.control.captured import captured_tables
from tailrace.control.health import check_health, read_stats
from tailrace.errors import LogError, SourceError, SourceGap, TailraceError
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.slot import SlotState, read_slot
from tailrace.storage import Store

logger = logging.getLogger(__name__)

TABLES_INTERVAL_S: Final = 5.0
LOG_INTERVAL_S: Final = 5.0
RETENTION_INTERVAL_S: Final = 60.0
HEALTH_INTERVAL_S: Final = 30.0
_TURN_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Duties:
    """What to keep in order."""

    dsn: str
    names: SourceNames
    selection: Selection
    heartbeat_interval_s: float
    hybrid: HybridSettings = field(default_factory=HybridSettings)
    merge: MergePolicy = field(default_factory=MergePolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)


class Tables(Protocol):
    """Looks after the tables, whichever way they are captured. `is_done` once the slot that is
    streamed is of no use to any of them.
    """

    @property
    def is_done(self) -> bool: ...

    def open(
        self, conn: Connection, *, should_go_on: Callable[[], bool]
    ) -> tuple[list[Refusal], int]:
        """Before capture begins: what is refused, and how many tables are captured."""

    def look_after(self, conn: Connection, *, should_go_on: Callable[[], bool]) -> list[Refusal]:
        """Now and then; what is refused, and never keeps out another table."""

    def close(self) -> None:
        """Give up what is under way."""


def observe_retained(conn: Connection, slot: SlotState | None, metrics: Metrics) -> None:
    """Note how much WAL the server keeps for us: none without a slot, or for one that is lost."""
    kept_from = None if slot is None else slot.restart_lsn
    metrics.retained_bytes.set(0 if kept_from is None else wal_position(conn) - kept_from)


class Housekeeping:
    """One leader's thread."""

    def __init__(
        self, duties: Duties, store: Store, tables: Tables, *, writer_id: str, metrics: Metrics
    ) -> None:
        self._duties = duties
        self._store = store
        self._tables = tables
        self._metrics = metrics
        self._merger = Merger(store, writer_id=writer_id, policy=duties.merge)
        self._conn: Connection | None = None
        self._news = News()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-housekeeping", daemon=True)
        self.failure: Exception | None = None
        self._turns: list[tuple[float, Callable[[], None]]] = [
            (duties.heartbeat_interval_s, self._heartbeat),
            (TABLES_INTERVAL_S, self._look_after_tables),
            (LOG_INTERVAL_S, self._merge),
            (RETENTION_INTERVAL_S, self._retain),
            (HEALTH_INTERVAL_S, self._look_at_health),
        ]

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> threading.Thread | None:
        """End, after the turn that is under way; one that hangs is left behind, and returned."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return self._thread if self._thread.is_alive() else None

    def _run(self) -> None:
        due = [time.monotonic()] * len(self._turns)
        while not self._stop.wait(_TURN_S) and self.failure is None:
            for number, (interval_s, turn) in enumerate(self._turns):
                if time.monotonic() >= due[number] and not self._stop.is_set():
                    self._take(turn)
                    due[number] = time.monotonic() + interval_s
        self._tables.close()
        self._disconnect()

    def _take(self, turn: Callable[[], None]) -> None:
        name = turn.__name__.strip("_")
        try:
            turn()
            self._news.forget(name)
        except psycopg.Error as error:
            self._disconnect()
            self._say_once(name, source_error(error))
        except SourceGap as error:
            self.failure = error
        except (SourceError, LogError) as error:
            self._disconnect()
            self._say_once(name, error)
        except Exception as error:
            # A bug. Without housekeeping the stream would go on, unwatched; so it must not.
            self.failure = error

    def _say_once(self, name: str, error: TailraceError) -> None:
        if self._news.is_new(name, str(error)):
            logger.warning("housekeeping failed turn=%s error=%s", name, error)

    def _connection(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._duties.dsn)
        return self._conn

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _heartbeat(self) -> None:
        # Not part of a transaction: it proves the link and moves no position by itself.
        self._connection().execute(
            "SELECT pg_logical_emit_message(false, 'tailrace.heartbeat', '')"
        )

    def _look_after_tables(self) -> None:
        conn = self._connection()
        self._say_refusals(self._tables.look_after(conn, should_go_on=self._should_go_on))
        observe_retained(conn, read_slot(conn, self._duties.names.slot), self._metrics)

    def _should_go_on(self) -> bool:
        return not self._stop.is_set()

    def _say_refusals(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            table = refusal.table.qualified
            if self._news.is_new(table, refusal.message):
                logger.warning("table left out table=%s reason=%s", table, refusal.message)

    def _look_at_health(self) -> None:
        """Where the control schema is: what needs a look is said, to whoever listens there too."""
        conn, source = self._connection(), self._duties.names.slot
        stats = read_stats(conn, source)
        if not stats:
            return
        self._metrics.modes(stats)
        if read_slot(conn, source) is None:
            # A drain that comes through says that nothing waits; one that hangs says nothing.
            self._metrics.lag_seconds.set(max(each.lag_seconds or 0.0 for each in stats))
        limit_s = self._duties.hybrid.transition_s_max
        found = check_health(conn, source, transition_s_max=limit_s, is_told=True)
        alerts = [each for each in found if each.reason]
        self._metrics.alerts.set(len(alerts))
        for alert in alerts:
            if self._news.is_new(f"alert {alert.table}", alert.reason):
                logger.warning("capture needs a look table=%s reason=%s", alert.table, alert.reason)

    def _merge(self) -> None:
        while not self._stop.is_set() and self._merger.step(time.time()):
            pass

    def _retain(self) -> None:
        captured = captured_tables(self._connection(), self._duties.names)
        tables = {each.oid for each in captured}
        retain(self._store, self._duties.retention, now_s=time.time(), tables=tables)
