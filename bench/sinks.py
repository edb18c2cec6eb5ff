"""`sinks`: records per second of each sink, beside a minimal writer that does only that.

The writers beside are what one would write for one table and one purpose: pyarrow's CSV into COPY
for a database, pyarrow's own writer for files. They record nothing, so they can neither be killed
nor told the same batch twice.
"""

from __future__ import annotations

from typing import Final

from bench.child import Child
from bench.report import Bound, Report, ratio_line
from bench.workbench import Workbench

SHARE_MIN: Final = 0.8
BATCH_ROWS: Final = 50_000

LINES: Final = {
    "postgres append": ("postgres, append", "plain COPY", SHARE_MIN),
    "postgres load": ("postgres, a table loaded", "plain COPY, with the primary key", SHARE_MIN),
    "postgres upsert": ("postgres, upsert", "COPY and INSERT … ON CONFLICT", SHARE_MIN),
    "parquet": ("parquet", "pyarrow to one file per batch", SHARE_MIN),
}


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows, rounds = workbench.options.rows, max(workbench.options.rounds, 1)
    with (
        workbench.database("bench_sinks") as database,
        workbench.directory("sinks") as directory,
    ):
        task = {
            "dsn": database.address("socket"),
            "directory": str(directory),
            "rows": rows,
            "batch_rows": BATCH_ROWS,
            "rounds": rounds,
        }
        with Child("sinks", task, log=directory / "sinks.log") as child:
            done = child.event("done")
    seconds: dict[str, dict[str, list[float]]] = done["seconds"]
    lines = []
    for name, (what, beside_name, share) in LINES.items():
        ours, beside = ([rows / each for each in seconds[name][side]] for side in ("ours", "plain"))
        bound = Bound(share)
        lines.append(ratio_line(what, "records/s", ours, beside, bound, beside_name=beside_name))
    samples = [{"sink": name, **each} for name, each in seconds.items()]
    return Report("sinks", lines, samples, settings={"batch_rows": BATCH_ROWS})
