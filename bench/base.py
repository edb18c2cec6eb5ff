"""`base`: a whole table into the log, read in parallel on Spark, beside one COPY to a file and
beside Spark's own JDBC reader.
"""

from __future__ import annotations

from typing import Final

from bench.child import Child
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.sides import Reading
from bench.workbench import Workbench
from bench.workload import fill_orders, make_orders

COPY_FLOOR: Final = 1.1
JDBC_FLOOR: Final = 3.0
ROWS_PER_ROW: Final = 5
"""How many rows the table has for each row of a backlog of usual size: five million."""


def run(workbench: Workbench) -> Report:
    """Measure."""
    return measure(workbench, with_driver=not workbench.options.quick)


def measure(workbench: Workbench, *, with_driver: bool) -> Report:
    """With the driver of Postgres for Java, if it is wanted and can be had."""
    options = workbench.options
    rows = options.rows * (1 if options.quick else ROWS_PER_ROW)
    readings: dict[str, list[Reading]] = {"base": [], "copy": [], "jdbc": []}
    with workbench.source("base") as source:
        workbench.say(f"filling a table of {rows:,} rows")
        with source.connect() as conn:
            make_orders(conn)
            source.begin()
            fill_orders(conn, 1, rows)
            conn.execute("VACUUM ANALYZE public.orders")
        told = {
            "dsn": source.database.dsn,
            "tcp_dsn": source.database.tcp_dsn,
            "psql": str(source.database.bin_dir / "psql"),
            "source": source.name,
            "log": source.new_log().as_uri(),
            "directory": str(source.directory),
            "rows": rows,
            "rounds": options.rounds,
            "master": "local[*]",
            "with_driver": with_driver,
        }
        with Child("base", told, log=source.directory / "base.log") as child:
            for event in child.events_until("done"):
                if event["event"] == "read":
                    reading = Reading(event["way"], "socket", rows, event["seconds"])
                    readings[event["way"]].append(reading)
                    workbench.say(f"{event['way']} {shown(reading.rate, 'rows/s')}")
    return Report("base", _lines(readings), _samples(readings))


def _lines(readings: dict[str, list[Reading]]) -> list[Line]:
    ours = [reading.rate for reading in readings["base"]]
    lines = [
        ratio_line(
            "base, on Spark",
            "rows/s",
            ours,
            [reading.rate for reading in readings["copy"]],
            Bound(COPY_FLOOR),
            beside_name="one COPY to a file",
        )
    ]
    if readings["jdbc"]:
        beside = [reading.rate for reading in readings["jdbc"]]
        bound = Bound(JDBC_FLOOR)
        lines.append(
            ratio_line(
                "base, on Spark", "rows/s", ours, beside, bound, beside_name="spark.read.jdbc"
            )
        )
    return lines


def _samples(readings: dict[str, list[Reading]]) -> list[dict[str, object]]:
    return [reading.sample() for each in readings.values() for reading in each]
