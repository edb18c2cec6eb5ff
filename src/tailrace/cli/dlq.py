"""`tailrace dlq`: look at dead letters, and decide about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.sinks.letters.dead_letter import DeadLetters
    from tailrace.sinks.letters.letter import Letter, LetterName
    from tailrace.storage import Store

_HELP: Final = (
    "Look at dead letters, redrive or discard them.\n\n"
    "They are kept beside the log, and these commands show and change what is there. With"
    " dead_letter_queue in its sink a stream also sends a copy of each letter to a queue of yours;"
    " what becomes of the letter later is not told there."
)

dlq = typer.Typer(
    help=_HELP, short_help="Look at dead letters, redrive or discard them.", no_args_is_help=True
)

WAIT_S: Final = 30.0
_POLL_S: Final = 0.2
SHOWN: Final = 10
"""Of what is left so many are named."""

_Stream = Annotated[str, typer.Argument(metavar="STREAM")]
_Events = Annotated[
    list[str] | None,
    typer.Argument(metavar="[EVENT]…", help="Event ids, as `ls` shows them.", show_default=False),
]


@dlq.command("ls")
def ls(
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]", show_default=False)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List what waits: one line for each row, with the first message that was refused and why.

    A last line counts the copies that a dead letter queue has not taken yet.

    Example: tailrace dlq ls orders
    """
    from tailrace.cli.json_text import json_text
    from tailrace.sinks.letters.dead_letter import DeadLetters
    from tailrace.sinks.queue.outbox import count_copies

    store = _store(config, stream)
    found = False
    for name in [stream] if stream else _streams(store):
        letters = DeadLetters(store, name)
        for lane in _lanes(letters.names()):
            first, left = _first(letters, lane)
            if first is None:
                continue
            found = True
            if as_json:
                typer.echo(json_text(_line(name, first, left)))
            else:
                typer.echo(_shown(name, first, left))
        if not as_json and (copies := count_copies(store, name)):
            typer.echo(f"{name}  {copies} copies wait for the dead letter queue")
    if not found and not as_json:
        typer.echo("no dead letters", err=True)


@dlq.command("show")
def show(
    stream: _Stream,
    event: Annotated[str, typer.Argument(metavar="EVENT")],
    config: ConfigFile = None,
    verbose: Verbose = False,
) -> None:
    """Print one dead letter whole, as JSON: the message, its offset, the error, the attempts.

    Example: tailrace dlq show orders 00000000016B3748-3
    """
    import json
    from dataclasses import asdict

    from tailrace.cli.json_text import json_text
    from tailrace.sinks.letters.dead_letter import DeadLetters

    letters = DeadLetters(_store(config, stream), stream)
    # The last one: a load that came since has outdone the others.
    *_, (_, letter) = _chosen(letters, stream, [event])
    value = asdict(letter)
    value["payload"] = json.loads(value["payload"])
    typer.echo(json_text(value, indent=2))


@dlq.command("redrive")
def redrive(
    stream: _Stream, events: _Events = None, config: ConfigFile = None, verbose: Verbose = False
) -> None:
    """Let the pipeline send dead letters again, in order, each row from its first letter on.

    Without EVENT all of them. The pipeline that delivers the stream does it, so
    that nothing newer passes; if none runs, it is done when the next one does.

    Example: tailrace dlq redrive orders
    """
    _ask("redrive", stream, events or [], _store(config, stream))


@dlq.command("discard")
def discard(
    stream: _Stream,
    events: _Events = None,
    every: Annotated[bool, typer.Option("--all", help="All letters of the stream.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Needed: the messages are lost.")] = False,
    config: ConfigFile = None,
    verbose: Verbose = False,
) -> None:
    """Delete dead letters without sending them. An audit line is left.

    Example: tailrace dlq discard orders 00000000016B3748-3 --yes
    """
    if every == bool(events):
        raise ConfigError("which letters?", hint="name their event ids, or write --all")
    if not yes:
        raise ConfigError("nothing was discarded", hint="write --yes: the messages are lost")
    _ask("discard", stream, events or [], _store(config, stream))


def _ask(
    action: Literal["redrive", "discard"], stream: str, events: Sequence[str], store: Store
) -> None:
    """Leave the request, and wait a while for what becomes of it."""
    import getpass
    import time

    from tailrace.sinks.letters.dead_letter import DeadLetters
    from tailrace.sinks.letters.redrive import Request, Requests
    from tailrace.sinks.sink import REPLAY_SUFFIX, stream_of

    if stream.endswith(REPLAY_SUFFIX):
        raise ConfigError(
            f"the letters of a replay are not {action}ed: the next replay begins without them",
            hint=f"replay again what you need: tailrace replay {stream_of(stream)} --from …",
        )
    letters = DeadLetters(store, stream)
    chosen = [name for name, _ in _chosen(letters, stream, events)] if events else letters.names()
    if not chosen:
        typer.echo(f"stream {stream} has no dead letters")
        return
    # A redrive of all takes what comes meanwhile as well; a discard only what was seen.
    keys = [name.key for name in chosen] if events or action == "discard" else []
    request = Request.new(action, keys, who=getpass.getuser(), now=time.time())
    requests = Requests(store, stream)
    requests.ask(request)
    deadline = time.monotonic() + WAIT_S
    while (audit := requests.audit(request.id)) is None:
        if time.monotonic() >= deadline:
            typer.echo(f"asked: the pipeline of stream {stream} does it when it runs")
            raise typer.Exit(1)
        time.sleep(_POLL_S)
    typer.echo(f"{action}: {len(audit.done)} done, {len(audit.failed)} left")
    names = {name.place: name for name in letters.names()} if audit.failed else {}
    for place, reason in list(audit.failed.items())[:SHOWN]:
        letter = _read(letters, names[place]) if place in names else None
        typer.echo(f"  {letter.event_id if letter else place}  {reason}")
    if audit.error:
        typer.echo(f"  stopped: {audit.error}")
    if audit.failed or audit.error:
        raise typer.Exit(1)


def _store(config: ConfigFile, stream: str | None) -> Store:
    """What letters are kept in; raises ConfigError if neither it nor the file knows the stream."""
    from tailrace.cli.config import load
    from tailrace.log.retention import reader_positions
    from tailrace.sinks.sink import stream_of
    from tailrace.storage import open_store

    settings = load(config)
    store = open_store(settings.log.url)
    if stream is not None:
        found = (*settings.streams, *reader_positions(store), *_streams(store))
        known = sorted(set(map(stream_of, found)))
        if stream_of(stream) not in known:
            hint = f"one of: {', '.join(known)}" if known else "there are none yet"
            raise ConfigError(f"there is no stream {stream}", hint=hint)
    return store


def _streams(store: Store) -> list[str]:
    """Those that have anything about dead letters beside the log."""
    from tailrace.log import layout

    keys = (entry.key.split("/") for entry in store.list(layout.STREAMS))
    return sorted({parts[1] for parts in keys if parts[2] == "dead_letters"})


def _lanes(names: Iterable[LetterName]) -> list[list[LetterName]]:
    """The letters of each row, in order."""
    lanes: dict[tuple[str, str, bool], list[LetterName]] = {}
    for name in names:
        lanes.setdefault((name.table_code, name.lane, name.is_outdone), []).append(name)
    return list(lanes.values())


def _shown(stream: str, first: Letter, lane: Sequence[LetterName]) -> str:
    state = (
        "outdone: its table was loaded or emptied since"
        if lane[0].is_outdone
        else first.error or "behind others"
    )
    what = f"{first.table}  {first.key or '(no key)'}  {first.event_id}"
    return f"{stream}  {what}  +{len(lane) - 1} behind  {first.parked_at}  {state}"


def _line(stream: str, first: Letter, lane: Sequence[LetterName]) -> dict[str, object]:
    return {
        "stream": stream,
        "table": first.table,
        "key": first.key,
        "event_id": first.event_id,
        "offset": first.offset,
        "letters": len(lane),
        "bytes": sum(name.size for name in lane),
        "outdone": lane[0].is_outdone,
        "kind": first.kind,
        "error": first.error,
        "attempts": first.attempt_count,
        "sink": first.sink,
        "parked_at": first.parked_at,
    }


def _read(letters: DeadLetters, name: LetterName) -> Letter | None:
    """The letter; None if the pipeline has just deleted it."""
    from tailrace.storage import ObjectMissing

    try:
        return letters.read(name)
    except ObjectMissing:
        return None


def _first(
    letters: DeadLetters, lane: Sequence[LetterName]
) -> tuple[Letter | None, Sequence[LetterName]]:
    """The first letter of a row that is still there, and the names from it on."""
    for at, name in enumerate(lane):
        if (letter := _read(letters, name)) is not None:
            return letter, lane[at:]
    return None, ()


def _chosen(
    letters: DeadLetters, stream: str, events: Sequence[str]
) -> list[tuple[LetterName, Letter]]:
    """The letters with these event ids; raises ConfigError if there is none with one of them."""
    names = letters.names()
    found = []
    for event in events:
        lsn, _, rest = event.partition("-")
        near = [name for name in names if f"-{lsn}-" in name.place and rest]
        read = [(name, letter) for name in near if (letter := _read(letters, name)) is not None]
        exact = [(name, letter) for name, letter in read if letter.event_id == event]
        if not exact:
            hint = f"`tailrace dlq ls {stream}` lists the first of each row"
            raise ConfigError(f"stream {stream} has no dead letter {event}", hint=hint)
        found.extend(exact)
    return found
