"""`tailrace run`: capture and pipeline in one command."""

from __future__ import annotations

from pathlib import Path

import typer

from tailrace.cli.options import ConfigFile, Verbose


def run(config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Capture changes and deliver them, from one command.

    Each part is a process of its own. If one fails, the other is stopped and the reason shown.
    Ctrl-C ends both cleanly.

    Example: tailrace init && tailrace run
    """
    from tailrace.cli.children import Child, stop_with_parent
    from tailrace.cli.config import load
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.source import source_dsn

    settings = load(config)
    arguments = ["--config", str(Path(config).absolute())] if config is not None else []
    with StopSignals() as signals, source_dsn(settings):
        stop_with_parent(signals.event)
        children: list[Child] = []
        try:
            for name in ("capture", "pipeline") if settings.streams else ("capture",):
                children.append(Child(name, [name, *arguments, *(["-v"] if verbose else [])]))
            while not signals.event.wait(0.2):
                if any(child.status is not None for child in children):
                    break
        finally:
            # The pipeline first: what capture still seals is delivered at the next start.
            statuses = [child.stop() for child in reversed(children)]
    if any(statuses):
        raise typer.Exit(1)
