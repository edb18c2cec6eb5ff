"""`handover`: how long writers wait while a table goes from its triggers to the WAL, or back.

Writers that read and then write a table run as fast as they can; the table is handed over again and
again, both ways. What counts is the slowest transaction that was under way during each barrier, as
a multiple of the median transaction when nothing else happens.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bench.report import Line, Report
from bench.source import Source
from bench.workbench import Workbench
from tailrace.capture.hybrid.handover import Handover
from tailrace.capture.hybrid.shadow import Shadow
from tailrace.capture.modes import TableRules
from tailrace.capture.roll import remake_publications, rolls_of
from tailrace.capture.watch import begin_watch
from tailrace.control.schema import migrate
from tailrace.control.tracking import Mode, track
from tailrace.errors import SourceError
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.slot import create_slot
from tailrace.postgres.triggers import install_triggers
from tailrace.storage import FileStore

WRITERS: Final = 4
HANDOVERS: Final = 50
QUIET_S: Final = 3.0
_ROWS: Final = 1000
_NAMES: Final = SourceNames.of("bench")


class Writers:
    """Transactions that read and then write; when each began and ended."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self.spans: list[tuple[float, float]] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(WRITERS)
        ]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _run(self, number: int) -> None:
        with connect(self._dsn, settings={"synchronous_commit": "off"}) as conn:
            turn = number
            while not self._stop.is_set():
                turn = (turn + WRITERS) % _ROWS
                began = time.monotonic()
                with conn.transaction():
                    conn.execute("SELECT n FROM public.t WHERE id = %s", (turn,))
                    conn.execute("UPDATE public.t SET n = n + 1 WHERE id = %s", (turn,))
                self.spans.append((began, time.monotonic()))

    def slowest_ms(self, since: float, until: float) -> float:
        """Of the transactions that were under way at any time between."""
        spans = list(self.spans)
        during = [end - began for began, end in spans if end >= since and began <= until]
        return max(during, default=0.0) * 1000


def run(workbench: Workbench) -> Report:
    """Measure."""
    count = 4 if workbench.options.quick else HANDOVERS
    with workbench.source("handover") as source:
        median_ms, waits_ms = _measure(source, count)
    typical, worst = statistics.median(waits_ms), max(waits_ms)
    workbench.say(f"median transaction {median_ms:.2f} ms, waits up to {worst:.1f} ms")
    beside = f"{median_ms:.2f} ms median transaction"
    lines = [
        Line(f"{what} of {count} hand-overs", f"{wait:.1f} ms", beside, wait / median_ms)
        for what, wait in (("p50", typical), ("max", worst))
    ]
    samples = [{"median_ms": median_ms, "waits_ms": waits_ms}]
    return Report("handover", lines, samples, settings={"writers": WRITERS})


def _measure(source: Source, count: int) -> tuple[float, list[float]]:
    dsn = source.database.dsn
    leader, store = LockSession(dsn, sender_timeout_s=600), FileStore(source.directory / "records")
    assert leader.try_lock(_NAMES.slot)
    try:
        with connect(dsn) as conn:
            table = _prepare(conn, store, leader.pid)
            handover = Handover(store, _NAMES, leader.pid, _no_shadow)
            writers = Writers(dsn)
            with writers.at_work():
                time.sleep(QUIET_S)
                quiet = [end - began for began, end in list(writers.spans)]
                waits = [_one(conn, handover, table, writers, number) for number in range(count)]
    finally:
        leader.close()
    return statistics.median(quiet) * 1000, waits


def _prepare(conn: Connection, store: FileStore, leader_pid: int) -> TableInfo:
    conn.execute("CREATE TABLE public.t (id int PRIMARY KEY, n int NOT NULL)")
    conn.execute("INSERT INTO public.t SELECT g, 0 FROM generate_series(0, 999) AS g")
    migrate(conn)
    (table,) = tables_matching(conn, ["public.t"])
    install_triggers(conn, table, lock_timeout_ms=5000)
    track(conn, table, source=_NAMES.slot, mode=Mode.TRIGGER)
    remake_publications(conn, store, _NAMES, [table.oid], leader_pid=leader_pid)
    create_slot(conn, _NAMES.slot, lock_timeout_ms=5000)
    begin_watch(conn, store, table.oid, by_trigger=True)
    return table


def _one(
    conn: Connection, handover: Handover, table: TableInfo, writers: Writers, number: int
) -> float:
    rules, roll = TableRules(), rolls_of(_NAMES)[0]
    handover.tries.begin_turn([table], lambda: True)
    since = time.monotonic()
    if number % 2 == 0:
        _insist(lambda: handover.pass_barrier(conn, table, rules, roll))
    else:
        _insist(lambda: handover.go_back(conn, table, rules, roll))
    until = time.monotonic()
    time.sleep(0.2)
    return writers.slowest_ms(since, until)


def _insist(act: Callable[[], None]) -> None:
    while True:
        try:
            act()
            return
        except SourceError as error:
            if not error.retry:
                raise


def _no_shadow(table: TableInfo) -> Shadow:
    raise AssertionError(f"{table.qualified} is not compared here")
