"""`verify`: source and lake compared row by row, beside reading the table's rows once."""

from __future__ import annotations

from typing import Final

from bench.child import Child
from bench.report import Bound, Report, ratio_line, shown
from bench.workbench import Workbench
from bench.workload import fill_orders, make_orders

ROWS_FACTOR: Final = 5
CEILING: Final = 2.0


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = workbench.options.rows * ROWS_FACTOR
    with workbench.source("verify") as source:
        with source.connect() as conn:
            make_orders(conn)
            fill_orders(conn, 1, rows)
            conn.execute("VACUUM ANALYZE public.orders")
        workbench.say(f"filled {shown(rows, 'rows')}")
        task = {
            "dsn": source.database.dsn,
            "lake": str(source.directory / "lake"),
            "rows": rows,
            "psql": str(source.database.bin_dir / "psql"),
            "rounds": workbench.options.rounds,
        }
        with Child("verify", task, log=source.directory / "verify.log") as child:
            done = child.event("done")
    seconds: dict[str, list[float]] = done["seconds"]
    workbench.say(", ".join(f"{what} {min(each):.2f} s" for what, each in seconds.items()))
    bound = Bound(CEILING, at_most=True)
    what = f"{shown(rows, 'rows')} compared"
    both = [sum(pair) for pair in zip(seconds["copy"], seconds["scan"], strict=True)]
    return Report(
        "verify",
        [
            ratio_line(
                what, "s", seconds["verify"], seconds["copy"], bound, beside_name="COPY to psql"
            ),
            ratio_line(
                what, "s", seconds["verify"], both, None, beside_name="COPY to psql, then the lake"
            ),
        ],
        [{"rows": rows, **done}],
        settings={"table_rows": rows},
    )
