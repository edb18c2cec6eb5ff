"""`tailrace status`: slot, log and streams at a glance."""

from __future__ import annotations

import json

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose


def status(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Show the slot, the log and the streams.

    Exit status 1 if something needs a person, such as a lost slot.

    Example: tailrace status --json
    """
    import dataclasses

    from rich.console import Console
    from rich.table import Table

    from tailrace.cli.config import load
    from tailrace.cli.quantity import show_size
    from tailrace.cli.source import current_dsn
    from tailrace.cli.wiring import source_names
    from tailrace.status import gather
    from tailrace.storage import open_store

    settings = load(config)
    store = open_store(settings.log.url)
    report = gather(current_dsn(settings), source_names(settings), store, list(settings.streams))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), default=str, indent=2))
    else:
        source, log = report.source, report.log
        table = Table(show_header=False, box=None, padding=(0, 3, 0, 0))
        table.add_row("slot", source.slot, f"{source.state} {source.error}".strip())
        if source.retained_wal_bytes is not None:
            retained = show_size(source.retained_wal_bytes)
            table.add_row("", "", f"confirmed {source.confirmed_lsn}, {retained} of wal retained")
            table.add_row("tables", str(len(source.tables)), " ".join(source.tables))
        span = "not begun" if log.start is None else f"{log.start} … {log.tip}"
        table.add_row("log", log.url, span)
        table.add_row("", "", f"{log.object_count} objects, {show_size(log.stored_bytes)}")
        for stream in report.streams:
            lag = "-" if stream.lag_bytes is None else f"{show_size(stream.lag_bytes)} behind"
            table.add_row("stream", stream.name, f"at {stream.position or '-'}, {lag}")
        Console().print(table)
    if not report.is_healthy:
        raise typer.Exit(1)
