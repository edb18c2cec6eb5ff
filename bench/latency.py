"""`latency`: from the return of COMMIT until the change is durable in the log, beside one fsync of
the same disk.

One writer commits small transactions at a fixed pace, on schedule whether or not the last one is
durable yet. Both moments are of the one clock that all processes of the machine share.
"""

from __future__ import annotations

import statistics
import time
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from bench.child import Child
from bench.machine import time_fsyncs
from bench.report import Bound, Line, Report, shown
from bench.source import Source
from bench.workbench import Workbench
from bench.workload import make_orders
from tailrace.decode import decode
from tailrace.log import segment
from tailrace.model import ORIGIN, Offset

RATE: Final = 200
SECONDS: Final = 10
MEDIAN_AIM: Final = 6.0
P99_AIM: Final = 30.0
SLACK: Final = 2.0
"""Latency is the noisiest figure of all: an aim is reported, only twice the aim is a failure."""

_INSERT: Final = (
    "INSERT INTO public.orders VALUES (%s, 1, 12.34, 'a note of twenty c.', now(), true)"
)


def run(workbench: Workbench) -> Report:
    """Measure."""
    count = RATE * (1 if workbench.options.quick else SECONDS)
    samples = []
    with workbench.source("latency") as source:
        with source.connect() as conn:
            make_orders(conn)
        source.begin()
        for number in range(workbench.options.rounds):
            sample = _round(source, first=number * count, count=count)
            samples.append(sample)
            workbench.say(
                f"round {number + 1} median {sample['median_ms']:.1f} ms, p99 "
                f"{sample['p99_ms']:.1f} ms, fsync {sample['fsync_ms']:.1f} ms"
            )
            # The next round starts where this one ended.
            source.begin(changes=count)
    return Report(
        "latency",
        [
            _line("median", "median_ms", MEDIAN_AIM, samples),
            _line("99th percentile", "p99_ms", P99_AIM, samples),
        ],
        samples,
        {"transactions_per_second": RATE, "transactions": count},
        notes=[
            f"the aims are {MEDIAN_AIM:.0f}x and {P99_AIM:.0f}x; the run fails at twice that",
            "one fsync: 4 KiB written and synced on the same disk, before and after each round",
        ],
    )


def _round(source: Source, *, first: int, count: int) -> dict[str, Any]:
    fsyncs = time_fsyncs(source.directory)
    with source.capture("socket", count, keep_segments=True) as child:
        child.event("streaming")
        with source.connect() as conn:
            committed = _write(conn, first, count)
        child.event("done")
        child.close_input()
        durable = _durable_times(child)
    fsyncs += time_fsyncs(source.directory)
    latencies = sorted((durable[id_] - at) * 1e3 for id_, at in committed.items())
    return {
        "median_ms": statistics.median(latencies),
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "max_ms": latencies[-1],
        "fsync_ms": statistics.median(fsyncs) * 1e3,
        "latencies_ms": [round(latency, 3) for latency in latencies],
    }


def _write(conn: psycopg.Connection, first: int, count: int) -> dict[int, float]:
    """Commit one row at a time; the moment at which each COMMIT returned, by its id."""
    committed = {}
    began = time.monotonic()
    for number in range(count):
        due = began + number / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        conn.execute(_INSERT, (first + number,))
        committed[first + number] = time.monotonic()
    return committed


def _durable_times(child: Child) -> dict[int, float]:
    durable: dict[int, float] = {}
    for event in child.events_until("stopped"):
        if event["event"] == "segment":
            data = b64decode(event["data"])
            durable |= dict.fromkeys(_ids(event["key"], data), event["at"])
    return durable


def _ids(key: str, data: bytes) -> list[int]:
    found = segment.decode(data, key=key)
    tables = decode(
        found.frames,
        initial=found.header.initial,
        versions=found.header.versions,
        after=ORIGIN,
        upto=Offset.whole(found.header.end),
        columns=("id",),
    )
    return [int(value) for table in tables for value in table.rows.column("id").to_numpy()]


def _line(what: str, field: str, aim: float, samples: Sequence[dict[str, Any]]) -> Line:
    multiples = [sample[field] / sample["fsync_ms"] for sample in samples]
    return Line(
        what=f"commit to durable, {what}",
        ours=shown(statistics.median(sample[field] for sample in samples), "ms"),
        beside=f"{shown(statistics.median(s['fsync_ms'] for s in samples), 'ms')} one fsync",
        value=statistics.median(multiples),
        bound=Bound(aim * SLACK, at_most=True),
        note=""
        if statistics.median(multiples) <= aim
        else f"{what}: the aim of {aim:.0f}x is missed",
    )
