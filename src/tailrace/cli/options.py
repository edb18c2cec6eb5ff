"""The options that commands share, so that they are spelt and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli import logs


def _verbose(value: bool) -> bool:
    if value:
        logs.configure(verbose=True)
    return value


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The configuration.", show_default="./tailrace.yaml"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=_verbose, help="Log every step; show tracebacks of failures."
    ),
]
