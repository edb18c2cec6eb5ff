"""`tailrace stream`: look at streams, pause and resume them, end one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.cli.config import Config
    from tailrace.control.streams import StreamRow
    from tailrace.postgres.session import Connection

stream = typer.Typer(help="Look at streams; pause, resume and end them.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(metavar="STREAM", help="Its name.")]

END_S: Final = 20.0
"""How long a pipeline may take to let go of a stream."""


@stream.command()
def ls(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """List the streams of the file and of SQL, with their states.

    Works whether a pipeline runs or not: it shows what was last reported.

    Example: tailrace stream ls --json
    """
    from rich.console import Console

    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.cli.stream_table import facts, table_of

    rows = _rows(load(config))
    if as_json:
        typer.echo(json_text([facts(row) for row in rows], indent=2))
    else:
        Console().print(table_of(rows))


@stream.command()
def show(
    name: _Name, config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False
) -> None:
    """Show one stream whole: what it delivers, its state, its position, its counters.

    Example: tailrace stream show lake
    """
    from rich.console import Console

    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.cli.stream_table import facts, sheet_of

    rows = {row.name: row for row in _rows(load(config))}
    row = _one(rows, name)
    if as_json:
        typer.echo(json_text(facts(row), indent=2))
    else:
        Console().print(sheet_of(row))


@stream.command()
def plan(config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Show what the file would change: streams added, changed, removed. Nothing is changed.

    `tailrace run` and `tailrace pipeline` show the same, and then do it.

    Example: tailrace stream plan
    """
    from tailrace.cli.config import load
    from tailrace.cli.definitions import declared
    from tailrace.cli.stream_plan import plan_streams
    from tailrace.cli.synchronising import control_session
    from tailrace.cli.wiring import source_names

    settings = load(config)
    with control_session(settings) as conn:
        lines = list(plan_streams(conn, source_names(settings).slot, declared(settings)).lines())
    typer.echo("\n".join(lines) or "nothing changes")


@stream.command()
def pause(name: _Name, config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Pause a stream: it stays where it is, and the log is kept for it.

    A running pipeline ends the batch that is under way, and no other begins.
    Nothing else of the file is carried out: neither other streams, nor what has
    changed of this one.

    Example: tailrace stream pause lake
    """
    _set_paused(config, name, paused=True)


@stream.command()
def resume(name: _Name, config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Resume a stream that is paused, or try one again that has stopped.

    Nothing else of the file is carried out: neither other streams, nor what has
    changed of this one.

    Example: tailrace stream resume lake
    """
    _set_paused(config, name, paused=False)


@stream.command()
def rm(
    name: Annotated[str, typer.Argument(metavar="STREAM", help="One that is not configured.")],
    config: ConfigFile = None,
    verbose: Verbose = False,
) -> None:
    """End a stream, so that the log is not kept for it any longer.

    One of SQL, or one that the file does not declare any more. Its sink stays
    as it is. A stream that gets the same name later takes up every table anew.

    Example: tailrace stream rm old_lake
    """
    from tailrace.cli.config import load
    from tailrace.log.retention import reader_positions
    from tailrace.sinks.sink import stream_of
    from tailrace.storage import open_store
    from tailrace.streams.removing import remove_stream

    settings = load(config)
    if name in settings.streams:
        raise ConfigError(
            f"stream {name} is configured",
            hint=f"take {name} out of the configuration, restart the pipeline, then remove it",
        )
    store = open_store(settings.log.url)
    is_deleted = _delete(settings, name)
    known = {each for each in reader_positions(store) if each == stream_of(each)}
    if name not in known and not is_deleted:
        hint = f"one of: {', '.join(sorted(known))}" if known else "none has begun"
        raise ConfigError(f"the log knows no stream {name}", hint=hint)
    remove_stream(store, name)
    typer.echo(f"removed stream {name}; its sink stays as it is")


def _delete(settings: Config, name: str) -> bool:
    """Delete the stream's row, and wait until nobody delivers it; whether there was one. Without
    the database there may be one, and then it would come back.
    """
    from tailrace.cli.synchronising import await_free, control_session
    from tailrace.cli.wiring import source_names
    from tailrace.control.streams import delete, has_streams, reporting
    from tailrace.errors import SourceError, TailraceError
    from tailrace.storage import open_store
    from tailrace.streams.kept_roster import read_roster

    try:
        with control_session(settings) as conn:
            if not has_streams(conn):
                return False
            with reporting(conn):
                is_deleted = delete(conn, source_names(settings).slot, name)
    except SourceError:
        kept = read_roster(open_store(settings.log.url)) or ()
        if any(each.name == name for each in kept):
            raise
        return False
    if is_deleted and not await_free(settings, name, patience_s=END_S):
        raise TailraceError(
            f"stream {name} is deleted, and a pipeline still delivers its last batch",
            hint="run this again in a while",
        )
    return is_deleted


def _set_paused(config: ConfigFile, name: str, *, paused: bool) -> None:
    from tailrace.cli.config import load
    from tailrace.cli.synchronising import control_session, have_row
    from tailrace.cli.wiring import source_names
    from tailrace.control.streams import set_paused

    settings = load(config)
    with control_session(settings) as conn:
        _one({row.name: row for row in _known(conn, settings)}, name)
        have_row(conn, settings, name)
        set_paused(conn, source_names(settings).slot, name, paused=paused)
    typer.echo(f"{'paused' if paused else 'resumed'} stream {name}")


def _rows(settings: Config) -> list[StreamRow]:
    from tailrace.cli.synchronising import control_session

    with control_session(settings) as conn:
        return _known(conn, settings)


def _known(conn: Connection, settings: Config) -> list[StreamRow]:
    """From the control schema; streams of the file that it does not know yet as well."""
    from tailrace.cli.definitions import declared
    from tailrace.cli.wiring import source_names
    from tailrace.control.streams import Status, StreamRow, read_streams

    rows = read_streams(conn, source_names(settings).slot)
    known = {row.name for row in rows}
    for each in declared(settings):
        if each.name not in known:
            told = "no pipeline has taken it up yet"
            row = StreamRow.new(each.name, each.origin, each.definition, Status.STOPPED, told)
            rows.append(row)
    return sorted(rows, key=lambda row: row.name)


def _one(rows: dict[str, StreamRow], name: str) -> StreamRow:
    if name not in rows:
        hint = f"one of: {', '.join(rows)}" if rows else "there are none yet"
        raise ConfigError(f"there is no stream {name}", hint=hint)
    return rows[name]
