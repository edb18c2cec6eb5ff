"""`tailrace stream`: end a stream that is not wanted any more."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import ConfigError

stream = typer.Typer(help="End a stream.", no_args_is_help=True)


@stream.callback()
def _noun() -> None:
    pass


@stream.command()
def rm(
    name: Annotated[str, typer.Argument(metavar="STREAM", help="One that is not configured.")],
    config: ConfigFile = None,
    verbose: Verbose = False,
) -> None:
    """End a stream, so that the log is not kept for it any longer.

    Take it out of the configuration first. Its sink stays as it is. A stream
    that gets the same name later takes up every table anew.

    Example: tailrace stream rm old_lake
    """
    from tailrace.cli.config import load
    from tailrace.log.retention import reader_positions
    from tailrace.sinks.sink import REPLAY_SUFFIX
    from tailrace.storage import open_store
    from tailrace.streams.record import StreamRecord

    settings = load(config)
    if name in settings.streams:
        raise ConfigError(
            f"stream {name} is configured",
            hint=f"take {name} out of the configuration, restart the pipeline, then remove it",
        )
    store = open_store(settings.log.url)
    known = {each for each in reader_positions(store) if not each.endswith(REPLAY_SUFFIX)}
    if name not in known:
        hint = f"one of: {', '.join(sorted(known))}" if known else "none has begun"
        raise ConfigError(f"the log knows no stream {name}", hint=hint)
    StreamRecord(store, name).remove()
    typer.echo(f"removed stream {name}; its sink stays as it is")
