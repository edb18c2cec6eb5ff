"""`sinks`: records per second of each sink, beside a minimal writer that does only that.

The writers beside are what one would write for one table and one purpose: pyarrow's CSV into COPY
for a database, Spark's own write for files and for Kafka, json.dumps and a loop over requests for
the other queues. Both sides begin with the same changes and deliver the same. What the writers
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
    "parquet": ("parquet", "Spark's own write, of rows in its cache"),
    "webhook": ("webhook", "json.dumps, a loop of signed requests of 100"),
    "kinesis": ("kinesis", "json.dumps, a loop of boto3 with 500 records"),
    "kafka": ("kafka", "json.dumps, Spark's own write"),
}

OTHERS: Final = {
    "sent": "messages made beforehand",
    "pyarrow": "pyarrow to one file per batch, without an index",
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
            *(_other_line(name, "sent", each, counts[name]) for name, each in found.items()),
            _other_line("parquet", "pyarrow", seconds["parquet"], rows),
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


def _other_line(name: str, side: str, seconds: dict[str, list[float]], rows: int) -> Line:
    """Beside less than the whole task; no floor."""
    ours, beside = ([rows / each for each in seconds[which]] for which in ("ours", side))
    return ratio_line(name, "records/s", ours, beside, None, beside_name=OTHERS[side])


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
