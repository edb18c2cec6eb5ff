"""`tailrace replay`: deliver once more what a stream has delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.cli.config import Config
    from tailrace.sinks import Holds
    from tailrace.storage import Store
    from tailrace.streams.kept_roster import Kept
    from tailrace.streams.replay import Outcome, Replays, Request
    from tailrace.streams.replay.window import Window

WAIT_S: Final = 30.0
"""How long a pipeline is waited for that takes the request up."""

_POLL_S: Final = 0.2

_Text = str | None


def replay(
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    since: Annotated[
        _Text, typer.Option("--from", metavar="TIME", help="First commit time; 90m is so long ago.")
    ] = None,
    until: Annotated[
        _Text, typer.Option("--to", metavar="TIME", help="Last commit time.", show_default="now")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table; may be repeated.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN=VALUE", help="Only this row; one for each column."),
    ] = None,
    to_sink: Annotated[
        str, typer.Option("--to-sink", metavar="YAML", help="To this sink, not to the stream's.")
    ] = "",
    rate: Annotated[int, typer.Option("--rate", min=0, help="Changes a second; 0: no limit.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would be.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the one that runs.")] = False,
    config: ConfigFile = None,
    verbose: Verbose = False,
) -> None:
    """Deliver once more what was committed from one time to another, while the stream goes on.

    Without --from: show the one that runs, or what could be replayed. Times
    without a zone are UTC; a position of the log (0/16B3748) will do as well.
    The pipeline does the work; Ctrl-C only ends the watching. An upsert target
    never gets an older state over a newer one; a queue gets marked messages.

    Example: tailrace replay lake --from 2026-01-15T10:00 --to 2026-01-15T11:00
    """
    from tailrace.cli.config import load
    from tailrace.storage import open_store
    from tailrace.streams.replay import Replays

    settings = load(config)
    store = open_store(settings.log.url)
    _must_have_begun(store, stream)
    if since is None and any((until, table, key, to_sink, rate, dry_run)):
        raise ConfigError("a replay needs its beginning", hint="--from 90m, or a time")
    if cancel and since is not None:
        raise ConfigError(
            "--cancel ends the replay that runs: it has no --from",
            hint=f"tailrace replay {stream} --cancel",
        )
    replays = Replays(store)
    if cancel:
        request = replays.cancel(stream)
        if request is None:
            raise ConfigError(f"no replay of stream {stream} is under way")
        _watch(replays, request, store, is_cancel=True)
    elif since is None:
        _show(replays, store, stream)
    else:
        request = _request(
            *(settings, stream, since, until, table or [], key or []), to_sink=to_sink, rate=rate
        )
        if dry_run:
            _say_what_it_would_be(settings, store, request)
        else:
            replays.ask(request)
            _watch(replays, request, store)


def _request(
    settings: Config,
    stream: str,
    since: str,
    until: str | None,
    tables: Sequence[str],
    key: Sequence[str],
    *,
    to_sink: str,
    rate: int,
) -> Request:
    import getpass
    from datetime import UTC, datetime

    from tailrace.cli.moment import parse_moment
    from tailrace.cli.other_sink import read_other_sink
    from tailrace.postgres.pattern import TablePattern
    from tailrace.streams.replay import Request

    now = datetime.now(UTC)
    for name in tables:
        TablePattern.parse(name)
    parts = [text.partition("=") for text in key]
    if any(not equals for _, equals, _ in parts):
        raise ConfigError("a key is COLUMN=VALUE", hint="--key id=42")
    if to_sink:
        read_other_sink(to_sink, settings.directory.parent)
    return Request.new(
        stream,
        parse_moment(since, "--from", now=now),
        None if until is None else parse_moment(until, "--to", now=now),
        now=now,
        tables=tables,
        key=[(name, value) for name, _, value in parts],
        to_sink=to_sink,
        rate=rate,
        who=getpass.getuser(),
    )


def _must_have_begun(store: Store, stream: str) -> None:
    from tailrace.log.retention import reader_positions
    from tailrace.sinks.sink import stream_of

    known = [name for name in reader_positions(store) if name == stream_of(name)]
    if stream not in known:
        hint = f"one of: {', '.join(known)}" if known else "no stream has"
        what = f"there is no stream {stream}, or it has delivered nothing yet"
        raise ConfigError(what, hint=hint)


def _say_what_it_would_be(settings: Config, store: Store, request: Request) -> None:
    from tailrace.log import Reader
    from tailrace.streams.record import StreamRecord
    from tailrace.streams.replay.survey import survey
    from tailrace.streams.replay.window import resolve

    tables = StreamRecord(store, request.stream).delivered_tables()
    reader = Reader(store)
    window = resolve(request, reader, tables, _holds(settings, store, request))
    _check_key(settings, store, request, window)
    typer.echo(f"{request.window}: positions after {window.start} up to {window.end}")
    counts = survey(reader, window)
    # Which of a table's changes a key means is known only when they are read.
    at_most = "at most " if request.key else ""
    for name, count in counts.items():
        typer.echo(f"  {name}  {at_most}{count:,} changes")
    if window.note:
        typer.echo(window.note)
    typer.echo("nothing was asked for")


def _check_key(settings: Config, store: Store, request: Request, window: Window) -> None:
    """Raise ConfigError if the key is none of the table's; which the pipeline would say as well."""
    from tailrace.spark.selection import Selection
    from tailrace.streams.replay.choice import choose
    from tailrace.streams.replay.shapes import Shapes

    kept, section = _kept(store, request.stream), settings.streams.get(request.stream)
    own_key = kept.definition.key if kept is not None else section.key if section else None
    selection = Selection(key=None if own_key is None else tuple(own_key))
    shapes = Shapes(store, selection)
    choose(request, selection, [shapes.of(table) for table in window.tables])


def _holds(settings: Config, store: Store, request: Request) -> Holds:
    """What the sink has that it goes to."""
    from tailrace.sinks import Holds, held_by

    options = {} if request.to_sink else _sink_of(settings, store, request.stream)
    return held_by(options) if options else Holds.MESSAGES


def _sink_of(settings: Config, store: Store, stream: str) -> Mapping[str, object]:
    """A stream's sink, in the words of the configuration: as a pipeline has seen it last, which may
    be in SQL; else as the file has it.
    """
    kept = _kept(store, stream)
    if kept is not None:
        return kept.definition.sink
    section = settings.streams.get(stream)
    return {} if section is None else section.sink.model_dump(by_alias=True)


def _kept(store: Store, stream: str) -> Kept | None:
    """The stream as a pipeline has seen it last."""
    from tailrace.streams.kept_roster import read_roster

    return next((each for each in read_roster(store) or () if each.name == stream), None)


def _show(replays: Replays, store: Store, stream: str) -> None:
    """The one that runs, to its end; else the last one, and what the log has."""
    from tailrace.log import Reader
    from tailrace.streams.replay.request import to_time
    from tailrace.streams.replay.window import available

    request = replays.current(stream)
    if request is not None:
        _watch(replays, request, store)
        return
    last = replays.last(stream)
    if last is not None:
        typer.echo(f"the last replay, {last.window}: {_told(last)}")
    found = available(Reader(store))
    if found is None:
        typer.echo("the log has no change yet")
    else:
        typer.echo(
            f"the log has what was committed from {to_time(found[0])} to {to_time(found[1])}"
        )


def _watch(replays: Replays, request: Request, store: Store, *, is_cancel: bool = False) -> None:
    """Show how far it is until it is over; exit status 1 unless it ends as it was meant to."""
    import time

    from rich.console import Console

    from tailrace.cli.replay_bar import ReplayBar

    kept = _kept(store, request.stream)
    if kept is not None and kept.paused and replays.outcome(request) is None:
        typer.echo(
            f"asked: it waits until the stream is resumed: tailrace stream resume {request.stream}"
        )
        raise typer.Exit(1)
    deadline = time.monotonic() + WAIT_S
    try:
        with ReplayBar(Console(stderr=True), request) as bar:
            # What is over has an outcome, so that is looked for last.
            progress = replays.progress(request.stream)
            while (outcome := replays.outcome(request)) is None:
                if progress is None or progress.request.id != request.id:
                    raise TailraceError("the replay is gone: its request could not be read")
                bar.show(progress)
                if progress.has_begun:
                    deadline = float("inf")
                if time.monotonic() >= deadline:
                    typer.echo(
                        f"asked: the pipeline of stream {request.stream} does it when it runs"
                    )
                    raise typer.Exit(1)
                time.sleep(_POLL_S)
                progress = replays.progress(request.stream)
    except KeyboardInterrupt:
        typer.echo(f"the replay goes on; to see it again: tailrace replay {request.stream}")
        raise typer.Exit from None
    typer.echo(_told(outcome))
    if outcome.state == "failed":
        raise TailraceError(f"the replay of stream {request.stream} has failed")
    if outcome.state == "cancelled" and not is_cancel:
        raise typer.Exit(1)


def _told(outcome: Outcome) -> str:
    note = f"; {outcome.note}" if outcome.note else ""
    return f"{outcome.state}: {outcome.change_count:,} changes{note}"
