"""`tailrace status`: slot, log and streams at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from tailrace.cli.config import Config
    from tailrace.status import LogReport, Report, SourceReport, StreamReport
    from tailrace.verify.stored import Verified


def status(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Show the slot, the tables, the log and the streams.

    Works from any machine that reaches Postgres and the log. Exit status 1 if
    a person is needed: nobody captures, the slot is lost, a table's capture
    needs a look, a stream cannot go on.

    Example: tailrace status --json
    """
    from rich.console import Console

    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.cli.source import current_dsn
    from tailrace.cli.wiring import hybrid_settings, selection, source_names
    from tailrace.log import Reader
    from tailrace.status import gather
    from tailrace.storage import open_store

    settings = load(config)
    report = gather(
        current_dsn(settings),
        source_names(settings),
        Reader(open_store(settings.log.url)),
        _tables_of_streams(settings),
        now_s=time.time(),
        selection=selection(settings),
        transition_s_max=hybrid_settings(settings.capture).transition_s_max,
    )
    if as_json:
        typer.echo(json_text(report, indent=2))
    else:
        Console().print(_table(report))
    if not report.is_healthy:
        raise typer.Exit(1)


def _tables_of_streams(settings: Config) -> dict[str, Sequence[str]]:
    """Of the file, and of SQL as far as that can be asked."""
    from tailrace.cli.synchronising import control_session
    from tailrace.cli.wiring import source_names
    from tailrace.control.streams import read_streams
    from tailrace.errors import SourceError

    found: dict[str, Sequence[str]] = {n: each.tables for n, each in settings.streams.items()}
    try:
        with control_session(settings) as conn:
            rows = read_streams(conn, source_names(settings).slot)
    except SourceError:
        # What cannot be reached is told of the source itself.
        return found
    return {**found, **{row.name: row.definition.tables for row in rows}}


def _table(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    for row in (*_source(report.source), *_log(report.log), *_streams(report.streams)):
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table


def _source(source: SourceReport) -> Iterator[tuple[str, str, str]]:
    from tailrace.cli.quantity import show_size

    yield "slot", source.slot, f"{source.state}: {source.error}" if source.error else source.state
    if source.retained_wal_bytes is not None:
        retained = f"{show_size(source.retained_wal_bytes)} of wal retained"
        if source.safe_wal_bytes is not None:
            retained += f", lost after {show_size(max(0, source.safe_wal_bytes))} more"
        yield "", "", f"confirmed {source.confirmed_lsn}, {retained}"
    if not source.error:
        yield "tables", f"{len(source.tables)} captured", " ".join(source.tables)
    for table in source.modes:
        if table.mode != "WAL":
            yield "", table.table, f"{table.mode}, {table.buffered_rows:,} rows buffered"
    for alert in source.alerts:
        yield "alert", alert.table, alert.reason
    for base in source.bases_under_way:
        held = f"vacuum held back for {base.age_s} s and {base.xmin_age:,} transactions"
        yield "base", base.what or "waits for open transactions", held
    for each in source.stale:
        yield "", each.table, f"waits for a new base: {each.reason}"
    for each in source.left_out:
        yield "", each.table, each.reason


def _log(log: LogReport) -> Iterator[tuple[str, str, str]]:
    from tailrace.cli.quantity import show_size

    if log.start is None:
        yield "log", "not begun", log.url
        return
    behind = "" if log.lag_bytes is None else f", {show_size(log.lag_bytes)} behind postgres"
    stored = f"{log.object_count} objects, {show_size(log.stored_bytes)}"
    yield "log", stored, f"{log.start} … {log.tip}{behind}"
    yield "", "", log.url


def _streams(streams: tuple[StreamReport, ...]) -> Iterator[tuple[str, str, str]]:
    from tailrace.cli.quantity import show_count, show_duration, show_size

    for stream in streams:
        if not stream.is_configured:
            held = f"not configured, the log is kept from {stream.position} on for it"
            yield "stream", stream.name, f"{held}: `tailrace stream rm {stream.name}` lets it go"
        elif stream.position is None:
            yield "stream", stream.name, "not begun"
        elif stream.error:
            yield "stream", stream.name, f"at {stream.position}: {stream.error}"
        elif stream.stopped and not stream.lag_bytes:
            yield "stream", stream.name, f"at {stream.position}"
        elif not stream.lag_bytes:
            yield "stream", stream.name, f"at {stream.position}, has everything"
        else:
            lag = f"{show_size(stream.lag_bytes)} and {show_duration(stream.lag_s or 0)} behind"
            yield "stream", stream.name, f"at {stream.position}, {lag}"
        if stream.stopped:
            yield "", "", f"stopped: {stream.stopped}"
        if stream.waiting:
            yield "", "", f"waiting for the base of {', '.join(stream.waiting)}"
        for pattern in stream.uncaptured:
            yield "", "", f"no table that {pattern} means is captured"
        if stream.dead_letters:
            letters = show_count(stream.dead_letters, "dead letter", "dead letters")
            waiting = show_count(stream.parked_keys, "row waits", "rows wait")
            yield "", "", f"{letters}, {waiting}: see `tailrace dlq ls {stream.name}`"
        if stream.verified is not None:
            yield "", "", _verified(stream.verified)


def _verified(last: Verified) -> str:
    from tailrace.cli.quantity import show_duration

    ago = f"verified {show_duration(max(0.0, time.time() - last.began_s))} ago"
    if last.equal:
        return f"{ago}: {last.table_count} tables equal their source"
    return f"{ago}: {', '.join(last.unlike)} differs; see `tailrace verify {last.stream}`"
