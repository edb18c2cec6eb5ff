"""`tailrace run`: capture and pipeline in one command."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import SourceError, TailraceError

if TYPE_CHECKING:
    from tailrace.cli.children import Child
    from tailrace.cli.config import Config

_POLL_S: Final = 0.2
_LOOK_S: Final = 1.0
"""How often to look for a first stream in SQL, while there is none to deliver."""


def run(config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Capture changes and deliver them, from one command.

    Each is a process of its own; without a stream there is only capture, until
    the first one is declared in SQL. If one fails, the other is stopped as well;
    a stream that fails is no such failure, and is resumed in SQL.
    Ctrl-C ends both cleanly.

    Example: tailrace init && tailrace run
    """
    from tailrace.cli.children import Children
    from tailrace.cli.config import load
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.source import source_dsn
    from tailrace.cli.synchronising import synchronise

    settings = load(config)
    arguments = [] if config is None else ["--config", str(config)]
    if verbose:
        arguments.append("--verbose")
    with StopSignals() as signals, source_dsn(settings), Children() as children:
        # Also where there is none yet: it makes the table in which the first may be declared.
        is_delivering = bool(settings.streams) or bool(synchronise(settings))
        for name in ("capture", "pipeline") if is_delivering else ("capture",):
            children.start(name, arguments)
        look_at = time.monotonic()
        while not signals.event.wait(_POLL_S):
            if (child := children.ended) is not None:
                _end_like(child)
            if not is_delivering and time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                with suppress(SourceError):
                    is_delivering = _has_streams(settings)
                if is_delivering:
                    children.start("pipeline", arguments)


def _has_streams(settings: Config) -> bool:
    """Whether somebody has declared a stream in SQL; raises SourceError."""
    import psycopg

    from tailrace.cli.synchronising import control_session
    from tailrace.cli.wiring import source_names
    from tailrace.control.streams import read_streams
    from tailrace.postgres.session import source_error

    try:
        with control_session(settings) as conn:
            return bool(read_streams(conn, source_names(settings).slot))
    except psycopg.Error as error:
        raise source_error(error) from error


def _end_like(child: Child) -> NoReturn:
    """It has said why on the terminal, unless it had no time to."""
    assert child.status is not None
    if child.status >= 0:
        raise typer.Exit(child.status)
    raise TailraceError(child.error, hint="was the machine short of memory? see the kernel's log")
