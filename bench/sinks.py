"""`sinks`: records per second of each sink, beside a minimal writer that does only that.

The writers beside are what one would write for one table and one purpose: pyarrow's CSV into COPY
for a database, pyarrow's own writer for files, json.dumps and a loop over requests for queues, or
Spark's own write. Both sides begin with the same changes and deliver the same. What the writers
record is nothing, so they can neither be killed nor told the same batch twice.
"""

from __future__ import annotations

from typing import Final

from bench.child import Child
from bench.report import Bound, Line, Report, ratio_line
from bench.workbench import Workbench

SHARE_MIN: Final = 0.8
BATCH_ROWS: Final = 50_000

LINES: Final = {
    "postgres append": ("postgres, append", "plain COPY"),
    "postgres load": ("postgres, a table loaded", "plain COPY, with the primary key"),
    "postgres upsert": ("postgres, upsert", "COPY and INSERT … ON CONFLICT"),
    "parquet": ("parquet", "pyarrow to one file per batch"),
    "webhook": ("webhook", "json.dumps, a loop of signed requests of 100"),
    "kinesis": ("kinesis", "json.dumps, a loop of boto3 with 500 records"),
    "kafka": ("kafka", "json.dumps, Spark's own write"),
}

_QUEUE_SHARES: Final = {"webhook": 0.1, "kinesis": 0.01, "kafka": 0.1}
"""Of the rows: queues take them one by one, and moto's server some thousands a second."""


def run(workbench: Workbench) -> Report:
    """Measure; without Kafka if in a hurry."""
    rows = workbench.options.rows
    seconds = _tables(workbench, rows)
    queue_rows = {name: max(1, int(rows * share)) for name, share in _QUEUE_SHARES.items()}
    if workbench.options.quick:
        del queue_rows["kafka"]
    found = _queues(workbench, queue_rows)
    counts = dict.fromkeys(seconds, rows) | queue_rows
    seconds |= found
    return Report(
        "sinks",
        [
            *(_line(name, seconds[name], counts[name]) for name in LINES if name in seconds),
            *(_sent_line(name, each, counts[name]) for name, each in found.items()),
        ],
        [{"sink": name, "rows": counts[name], **each} for name, each in seconds.items()],
        settings={"batch_rows": BATCH_ROWS},
        notes=["the receiver, moto's Kinesis and Kafka's broker are processes of this machine"],
    )


Seconds = dict[str, dict[str, list[float]]]
"""By sink and side, one for each round."""


def _line(name: str, seconds: dict[str, list[float]], rows: int) -> Line:
    what, beside_name = LINES[name]
    ours, beside = ([rows / each for each in seconds[side]] for side in ("ours", "plain"))
    bound = Bound(SHARE_MIN)
    return ratio_line(what, "records/s", ours, beside, bound, beside_name=beside_name)


def _sent_line(name: str, seconds: dict[str, list[float]], rows: int) -> Line:
    """How much of the time goes into anything but the queue; no floor, as somebody has to make the
    messages.
    """
    ours, beside = ([rows / each for each in seconds[side]] for side in ("ours", "sent"))
    beside_name = "messages made beforehand"
    return ratio_line(name, "records/s", ours, beside, None, beside_name=beside_name)


def _tables(workbench: Workbench, rows: int) -> Seconds:
    with (
        workbench.database("bench_sinks") as database,
        workbench.directory("sinks") as directory,
    ):
        task = {
            "dsn": database.address("socket"),
            "directory": str(directory),
            "rows": rows,
            "batch_rows": BATCH_ROWS,
            "rounds": workbench.options.rounds,
        }
        with Child("sinks", task, log=directory / "sinks.log") as child:
            return _seconds(child)


def _queues(workbench: Workbench, rows: dict[str, int]) -> Seconds:
    with (
        workbench.directory("queues") as directory,
        Child("queue_servers", {}, log=directory / "servers.log") as servers,
    ):
        addresses = servers.event("ready")
        task = {
            "directory": str(directory),
            "rows": rows,
            "batch_rows": BATCH_ROWS,
            "rounds": workbench.options.rounds,
            "webhook": addresses["webhook"],
            "kinesis": addresses["kinesis"],
        }
        with Child("queues", task, log=directory / "queues.log") as child:
            return _seconds(child)


def _seconds(child: Child) -> Seconds:
    found: Seconds = child.event("done")["seconds"]
    return found
