"""`upsert`: the cost of a batch of changes to a lake table, as a share of writing the table anew.

Neighbouring keys touch few files, and must cost the same in a large table as in a tenth of it, also
after batches of scattered keys have been at the table and it was tidied. Scattered keys touch every
file of any layout: their cost is reported, with no bound.
"""

from __future__ import annotations

from typing import Any, Final

from bench.child import Child
from bench.report import Bound, Line, Report, ratio_line, shown
from bench.workbench import Workbench

CHANGES: Final = 10_000
ROWS_FACTOR: Final = 5
TENTH: Final = 10
SHARE_MAX: Final = 0.1
GROWTH_MAX: Final = 1.5


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = workbench.options.rows * ROWS_FACTOR
    large, small = (_measure(workbench, count) for count in (rows, rows // TENTH))
    table, tenth = (f"table of {shown(count, 'rows')}" for count in (rows, rows // TENTH))
    anew = f"{table} written anew"
    share = Bound(SHARE_MAX, at_most=True)
    growth = Bound(GROWTH_MAX, at_most=True)
    return Report(
        "upsert",
        [
            _line("neighbouring keys", large, "neighbours", large, "rewrite", anew, share),
            _line("neighbouring keys", large, "neighbours", small, "neighbours", tenth, growth),
            _line(
                "neighbouring keys, after scattered ones and tidying",
                large,
                "neighbours then",
                large,
                "neighbours",
                "before",
                growth,
            ),
            _line("scattered keys", large, "scattered", large, "rewrite", anew, None),
            _line("scattered keys", large, "scattered", small, "scattered", tenth, None),
        ],
        [{"rows": rows, **large}, {"rows": rows // TENTH, **small}],
        settings={"changes": CHANGES, "table_rows": rows},
    )


def _measure(workbench: Workbench, rows: int) -> dict[str, Any]:
    rounds = max(workbench.options.rounds, 1)
    with workbench.directory(f"upsert-{rows}") as directory:
        task = {
            "lake": str(directory / "lake"),
            "rows": rows,
            "changes": CHANGES,
            "rounds": rounds,
        }
        with Child("upsert", task, log=directory / "upsert.log") as child:
            done = child.event("done")
    seconds: dict[str, list[float]] = done["seconds"]
    found = ", ".join(f"{what} {min(each):.2f} s" for what, each in seconds.items())
    workbench.say(f"{shown(rows, 'rows')}: {found}")
    return {"seconds": seconds, "memory_mb": done["memory_mb"]}


def _line(
    what: str,
    ours: dict[str, Any],
    name: str,
    beside: dict[str, Any],
    beside_name: str,
    beside_is: str,
    bound: Bound | None,
) -> Line:
    return ratio_line(
        f"{shown(CHANGES, 'changes')}, {what}",
        "s",
        ours["seconds"][name],
        beside["seconds"][beside_name],
        bound,
        beside_name=beside_is,
    )
