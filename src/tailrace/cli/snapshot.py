"""`tailrace snapshot`: tables as a whole, from Postgres into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose
from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.bases import TableResult
    from tailrace.postgres.quote import SourceNames
    from tailrace.storage import Store


def snapshot(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]…", help="schema.table, or schema.*", show_default=False),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Take a base: all rows of a table as of one position, beside its changes.

    Without TABLE, of every captured table that has none yet; `tailrace run`
    and `tailrace pipeline` do so by themselves. With TABLE, a new one: streams
    then replace the table in their sink at once by what it holds. Nobody who
    writes the tables waits; vacuum cannot clean up meanwhile.

    Example: tailrace snapshot public.orders
    """
    from rich.console import Console

    from tailrace.bases import BaseTaker
    from tailrace.bases.spark_runner import SparkRunner
    from tailrace.cli.base_bar import BaseBar
    from tailrace.cli.bases import base_settings
    from tailrace.cli.config import load
    from tailrace.cli.pipeline import start_spark, stop_spark
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import source_names
    from tailrace.storage import open_store

    settings = load(config)
    store = open_store(settings.log.url)
    with StopSignals() as signals, source_dsn(settings) as dsn:
        oids = _choose(dsn, source_names(settings), store, tables or [])
        results: list[TableResult] = []
        if oids:
            spark = start_spark(settings)
            try:
                with BaseBar(Console(stderr=True)) as bar:
                    taker = BaseTaker(
                        base_settings(settings, dsn),
                        store,
                        SparkRunner(spark),
                        stop=signals.event,
                        show=bar.show,
                    )
                    results = taker.take(oids)
            finally:
                stop_spark(spark)
    _report(results, as_json=as_json)


def _choose(dsn: str, names: SourceNames, store: Store, patterns: Sequence[str]) -> list[int]:
    """The tables that are asked for, by oid."""
    from tailrace.bases.automatic import tables_in_want
    from tailrace.control.captured import captured_tables
    from tailrace.postgres.catalog import read_tables
    from tailrace.postgres.pattern import TablePattern
    from tailrace.postgres.session import connect

    if not patterns:
        return tables_in_want(dsn, names, store)
    with connect(dsn) as conn:
        tables = read_tables(conn, [each.oid for each in captured_tables(conn, names)])
    oids: list[int] = []
    for pattern in map(TablePattern.parse, patterns):
        found = [table.oid for table in tables if pattern.matches(table.schema, table.name)]
        if not found:
            raise ConfigError(
                f"{pattern.text} matches no table that is captured",
                hint="`tailrace status` lists those that are; capture.tables says which to take",
            )
        oids += found
    return oids


def _report(results: Sequence[TableResult], *, as_json: bool) -> None:
    from tailrace.cli.json_text import json_text

    if as_json:
        typer.echo(json_text([_facts(result) for result in results], indent=2))
    elif not results:
        typer.echo("every captured table has a base")
    for result in results:
        if result.base is not None and not as_json:
            rows, position = f"{result.base.row_count:,}", result.base.position
            typer.echo(f"{result.table}: {rows} rows as of {position}")
    failed = [result for result in results if result.error is not None]
    if failed:
        assert failed[0].error is not None
        names = ", ".join(result.table for result in failed)
        raise TailraceError(f"no base of {names}: {failed[0].error}", hint=failed[0].error.hint)


def _facts(result: TableResult) -> dict[str, object]:
    base = result.base
    return {
        "table": result.table,
        "position": base.position if base else None,
        "rows": base.row_count if base else None,
        "error": str(result.error) if result.error else None,
    }
