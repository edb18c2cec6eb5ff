"""`tailrace run`: capture and pipeline in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.cli.children import Child

_POLL_S: Final = 0.2


def run(config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Capture changes and deliver them, from one command.

    Each is a process of its own. If one fails, the other is stopped as well.
    Ctrl-C ends both cleanly.

    Example: tailrace init && tailrace run
    """
    from tailrace.cli.children import Children
    from tailrace.cli.config import load
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import source_names
    from tailrace.control.streams import read_streams
    from tailrace.postgres.session import connect

    settings = load(config)
    arguments = [] if config is None else ["--config", str(config)]
    if verbose:
        arguments.append("--verbose")
    with StopSignals() as signals, source_dsn(settings) as dsn, Children() as children:
        is_delivering = bool(settings.streams)
        if not is_delivering:
            with connect(dsn) as conn:
                is_delivering = bool(read_streams(conn, source_names(settings).slot))
        for name in ("capture", "pipeline") if is_delivering else ("capture",):
            children.start(name, arguments)
        while not signals.event.wait(_POLL_S):
            if (child := children.ended) is not None:
                _end_like(child)


def _end_like(child: Child) -> NoReturn:
    """It has said why on the terminal, unless it had no time to."""
    assert child.status is not None
    if child.status >= 0:
        raise typer.Exit(child.status)
    raise TailraceError(child.error, hint="was the machine short of memory? see the kernel's log")
