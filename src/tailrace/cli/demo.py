"""`tailrace demo`: everything on one machine, and the proof that it is right.

An embedded Postgres, a small shop written by several connections, capture, Spark and Delta tables.
At the end the writers stop, the stream comes to rest, and SQL on both sides shows that every lake
table equals its source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.options import Verbose


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where everything is kept; emptied first.")
    ] = Path(".tailrace/demo"),
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long to write.")] = 60,
    forever: Annotated[bool, typer.Option("--forever", help="Write until Ctrl-C.")] = False,
    writers: Annotated[int, typer.Option("--writers", min=1, max=64, help="Connections.")] = 4,
    rate: Annotated[
        float, typer.Option("--rate", min=1, help="Transactions per second in all.")
    ] = 200,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Begin with triggers; hand over to the WAL halfway.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Try everything at once: Postgres, a busy shop, capture, Spark, Delta; then prove the lake.

    Needs nothing but this machine. Ctrl-C stops the writers early; the proof
    follows all the same. Exit status 1 if a lake table differs from its source.

    With --hybrid Postgres cannot decode its WAL at first: triggers capture.
    Halfway it is restarted with wal_level = logical, and tables are handed
    over under load.

    Example: tailrace demo --seconds 20
    """
    from rich.console import Console

    from tailrace.cli.demonstration import Demonstration
    from tailrace.cli.signals import StopSignals

    with StopSignals() as signals:
        show = Demonstration(Console(), directory.absolute(), signals.event, hybrid=hybrid)
        is_equal = show.run(None if forever else seconds, writers=writers, rate=rate)
    if not is_equal:
        raise typer.Exit(1)
