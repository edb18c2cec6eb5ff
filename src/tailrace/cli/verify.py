"""`tailrace verify`: source and lake compared at one position, and repaired if asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.cli.config import Config
    from tailrace.cli.config import Stream as StreamSection
    from tailrace.cli.sink_sections import DeltaSink
    from tailrace.verify.result import StreamResult


def verify(
    stream: Annotated[
        str | None, typer.Argument(help="The stream.", show_default="all that have a lake")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Argument(help="Only these of its tables.", show_default="all")
    ] = None,
    config: ConfigFile = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Let differing rows be what the source has.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Compare every lake table with its source, row by row, while changes flow.

    Both are summed up by ranges of the key as of one position; only ranges that
    differ are looked into. With a difference that is not repaired, the exit
    status is 1.

    Example: tailrace verify lake public.orders --repair
    """
    from rich.console import Console

    from tailrace.cli.config import load
    from tailrace.cli.differences import show
    from tailrace.cli.json_text import json_text
    from tailrace.cli.source import source_dsn
    from tailrace.cli.verifying import Bar, run_verification
    from tailrace.storage import open_store
    from tailrace.verify.stored import put_result

    settings = load(config)
    store = open_store(settings.log.url)
    results = []
    with source_dsn(settings) as dsn:
        for name in [stream] if stream else _with_lakes(settings):
            section, sink = _section(settings, name)
            session = _session(settings, sink) if repair else None
            with Bar(Console(file=sys.stderr), title=name) as bar:
                result = run_verification(
                    dsn,
                    store,
                    name,
                    section,
                    sink,
                    tables=table or [],
                    repair=repair,
                    watcher=bar,
                    session=session,
                )
            if not table:
                put_result(store, result)
            results.append(result)
    if as_json:
        typer.echo(json_text(results, indent=2))
    else:
        for result in results:
            Console().print(show(result.tables, title=f"stream {result.stream}: source = lake"))
            typer.echo(_verdict(result))
    if not all(result.equal for result in results):
        raise typer.Exit(1)


def _session(settings: Config, sink: DeltaSink) -> SparkSession | None:
    """Spark, if only Delta on Spark may write the lake; it ends with the process."""
    if sink.engine != "delta-spark":
        return None
    from tailrace.cli.pipeline import start_spark

    return start_spark(settings)


def _with_lakes(settings: Config) -> list[str]:
    names = [name for name, each in settings.streams.items() if each.sink.type == "delta"]
    if not names:
        raise ConfigError(
            "no stream has a lake to compare", hint="streams: {lake: {sink: {type: delta}}}"
        )
    return names


def _section(settings: Config, name: str) -> tuple[StreamSection, DeltaSink]:
    section = settings.streams.get(name)
    if section is None:
        known = ", ".join(settings.streams) or "none"
        raise ConfigError(f"there is no stream {name} in the file", hint=f"it has: {known}")
    if section.sink.type != "delta":
        raise ConfigError(
            f"stream {name} has a {section.sink.type} sink; only lakes (type: delta) are compared",
            hint=f"streams that have one: {', '.join(_with_lakes(settings))}",
        )
    return section, section.sink


def _verdict(result: StreamResult) -> str:
    from tailrace.cli.quantity import show_duration

    unlike = [table.table for table in result.tables if not table.equal]
    repaired = sum(table.repaired_rows for table in result.tables)
    at = f"at {result.position}, in {show_duration(result.seconds)}"
    mended = f"; {repaired} rows repaired" if repaired else ""
    if unlike:
        return f"{len(unlike)} of {len(result.tables)} tables differ {at}{mended}"
    return f"every lake table equals its source {at}{mended}"
