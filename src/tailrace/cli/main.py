"""The application: one line for each command, and the way every command ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from tailrace import __version__
from tailrace.cli import (
    capture,
    check,
    demo,
    dlq,
    failure,
    init,
    log,
    logs,
    pipeline,
    replay,
    run,
    snapshot,
    status,
    stream,
    teardown,
    verify,
)
from tailrace.cli.options import Verbose

_HELP: Final = (
    "PostgreSQL as a live, replayable stream of changes on Apache Spark.\n\n"
    "Capture writes every committed change to a log of plain files; streams deliver it from there,"
    " to Delta tables for instance, as often as you like."
)
_EPILOG: Final = (
    "Start with [bold]tailrace demo[/bold] to see it work,"
    " and with [bold]tailrace init[/bold] to use it: it writes tailrace.yaml.\n\n"
    "Every command takes --config FILE. Exit status: 0 fine, 1 a finding or a failure, 2 wrong use."
)

app = typer.Typer(
    name="tailrace",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(demo.demo)
app.command()(init.init)
app.command()(check.check)
app.command()(run.run)
app.command()(capture.capture)
app.command()(pipeline.pipeline)
app.command()(snapshot.snapshot)
app.command()(replay.replay)
app.command()(status.status)
app.command()(verify.verify)
app.add_typer(log.log, name="log")
app.add_typer(dlq.dlq, name="dlq")
app.add_typer(stream.stream, name="stream")
app.command()(teardown.teardown)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; always ends with SystemExit."""
    logs.configure(verbose=False)
    try:
        app(args=arguments, prog_name="tailrace")
    except Exception as error:
        sys.exit(failure.report(error, verbose=logs.is_verbose()))
