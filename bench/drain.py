"""`drain`: rows a second from triggers' buffers to the durable log, beside the one who writes them.

First a backlog is drained by itself. Then one writer fills the table as fast as it can while drains
run beside it on the same cores: they keep up if the last row is durable soon after it is written.
And a larger backlog is drained by itself: a row of it must cost no more than one of the smaller.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import psycopg

from bench.child import Child
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.workbench import Workbench
from bench.workload import fill_orders, make_orders
from tailrace.control.schema import migrate
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.triggers import install_triggers

ROWS_SHARE: Final = 5
"""Writing through triggers takes long: a fifth of the rows is enough."""

BEHIND_MAX: Final = 0.5
"""How long after the writer the last row may be durable, as a share of the writer's time."""

GROWTH: Final = 4
GROWTH_FLOOR: Final = 0.8
"""How fast a backlog so many times as large is drained, as a share of the smaller one's rate. Rows
that are sorted on disk cost a little more."""

LOCK_TIMEOUT_MS: Final = 10_000
SOURCE: Final = "tailrace_bench"


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = max(workbench.options.rows // ROWS_SHARE, 1)
    samples = []
    for number in range(workbench.options.rounds):
        sample = _round(workbench, rows)
        samples.append(sample)
        workbench.say(
            f"round {number + 1} writer {shown(sample['written'], 'rows/s')}, drained "
            f"{shown(sample['drained'], 'rows/s')}, together {shown(sample['beside'], 'rows/s')}, "
            f"larger {shown(sample['larger'], 'rows/s')}"
        )
    keeping_up = Line(
        what="drains beside the writer: last row durable after it",
        ours=shown(statistics.median(sample["behind_s"] for sample in samples), "s"),
        beside=f"{shown(statistics.median(s['beside_s'] for s in samples), 's')} of writing",
        value=max(statistics.median(s["behind_s"] / s["beside_s"] for s in samples), 1e-3),
        bound=Bound(BEHIND_MAX, at_most=True),
    )
    return Report(
        "drain",
        [
            ratio_line(
                "a backlog drained by itself",
                "rows/s",
                [sample["drained"] for sample in samples],
                [sample["written"] for sample in samples],
                Bound(1.0),
                beside_name="one writer with triggers",
            ),
            keeping_up,
            ratio_line(
                f"a backlog {GROWTH} times as large",
                "rows/s",
                [sample["larger"] for sample in samples],
                [sample["drained"] for sample in samples],
                Bound(GROWTH_FLOOR),
                beside_name="the smaller",
            ),
        ],
        samples,
        {"rows": rows, "memory_mb": max(sample["memory_mb"] for sample in samples)},
    )


def _round(workbench: Workbench, rows: int) -> dict[str, Any]:
    with (
        workbench.database("bench_drain") as database,
        workbench.directory("drain") as directory,
        psycopg.connect(database.dsn, autocommit=True) as conn,
    ):
        _make_table(conn)
        written_s = _timed_fill(conn, 1, rows)
        task = {"dsn": database.dsn, "source": SOURCE, "changes": rows}
        task["log"] = (directory / "alone").as_uri()
        with Child("drain", task, log=directory / "drain.log") as child:
            alone = child.event("done")
        task["log"] = (directory / "beside").as_uri()
        with Child("drain", task, log=directory / "drain.log") as child:
            child.event("ready")
            beside_s = _timed_fill(conn, rows + 1, 2 * rows)
            ended = time.monotonic()
            beside = child.event("done")
        _timed_fill(conn, 2 * rows + 1, (2 + GROWTH) * rows)
        task |= {"log": (directory / "larger").as_uri(), "changes": GROWTH * rows}
        with Child("drain", task, log=directory / "drain.log") as child:
            larger = child.event("done")
    return {
        "written": rows / written_s,
        "drained": rows / alone["seconds"],
        "beside": rows / beside_s,
        "larger": GROWTH * rows / larger["seconds"],
        "beside_s": beside_s,
        "behind_s": max(beside["at"] - ended, 0.0),
        "cpu_s": alone["cpu_s"],
        "memory_mb": max(alone["memory_mb"], beside["memory_mb"]),
    }


def _make_table(conn: psycopg.Connection) -> None:
    make_orders(conn)
    migrate(conn)
    row = conn.execute("SELECT 'public.orders'::regclass::oid::bigint").fetchone()
    assert row is not None
    (table,) = read_tables(conn, [row[0]])
    install_triggers(conn, table, lock_timeout_ms=LOCK_TIMEOUT_MS)


def _timed_fill(conn: psycopg.Connection, first: int, last: int) -> float:
    began = time.monotonic()
    fill_orders(conn, first, last)
    return time.monotonic() - began
