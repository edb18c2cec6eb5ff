"""`tailrace log`: look into the change log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.model import Offset

log = typer.Typer(help="Look into the change log.", no_args_is_help=True)

_From = Annotated[
    str, typer.Option("--from", metavar="POSITION", help="earliest, or 0/16B3748, or 0/16B3748:3.")
]


@log.command("ls")
def ls(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """List the segments.

    Example: tailrace log ls --json
    """
    from tailrace.cli.config import load
    from tailrace.log import Reader
    from tailrace.model import Offset
    from tailrace.storage import open_store

    reader = Reader(open_store(load(config).log.url))
    for link in reader.walk(Offset.whole(reader.begin())):
        header = link.header
        tables = {use.relation.qualified: 0 for use in header.relations}
        for use in header.relations:
            tables[use.relation.qualified] += use.change_count
        if as_json:
            value = {
                "key": link.key,
                "start": str(header.start),
                "end": str(header.end),
                "transactions": header.transaction_count,
                "changes": header.change_count,
                "bytes": link.data_bytes,
                "parts": len(header.parts),
                "tables": tables,
            }
            typer.echo(json.dumps(value))
        else:
            counted = " ".join(f"{name}={count}" for name, count in tables.items())
            typer.echo(f"{header.start} … {header.end}  {link.key}  {counted}")


@log.command("cat")
def cat(
    config: ConfigFile = None,
    table: Annotated[str, typer.Option("--table", help="Only tables like this.")] = "*.*",
    start: _From = "earliest",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many changes.")] = 100,
    verbose: Verbose = False,
) -> None:
    """Print changes, one JSON object a line, in order.

    Example: tailrace log cat --table public.orders --limit 5
    """
    from tailrace.cli.config import load
    from tailrace.log import Reader
    from tailrace.log.plan import pieces
    from tailrace.model import Offset, Relation
    from tailrace.postgres.pattern import TablePattern
    from tailrace.spark.planning import decode_pieces
    from tailrace.storage import open_store

    pattern = TablePattern.parse(table)
    reader = Reader(open_store(load(config).log.url))

    def wanted(relation: Relation) -> bool:
        return pattern.matches(relation.schema, relation.name)

    after = Offset.whole(reader.begin()) if start == "earliest" else _position(start)
    upto = Offset.whole(reader.tip().segment_end)
    left = limit
    for piece in pieces(reader, after, upto, wanted=wanted):
        rows = [
            {"_table": changes.relation.qualified, **row}
            for changes in decode_pieces(reader.store, [piece], wanted, None)
            for row in changes.rows.to_pylist()
        ]
        rows.sort(key=lambda row: (row["_commit_lsn"], row["_ordinal"]))
        for row in rows[:left]:
            typer.echo(json.dumps(row, default=str))
        left -= min(left, len(rows))
        if not left:
            return


@log.command("verify")
def verify(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Read the whole log and check chain, checksums and order.

    Exit status 1 if anything is wrong.

    Example: tailrace log verify
    """
    import dataclasses

    from rich.console import Console

    from tailrace.cli.config import load
    from tailrace.cli.quantity import show_size
    from tailrace.log.verify import Verification
    from tailrace.log.verify import verify as check
    from tailrace.storage import open_store

    result = Verification()
    with Console(stderr=True).status("reading the log") as progress:
        for result in check(open_store(load(config).log.url)):
            progress.update(f"{result.segment_count} segments, {show_size(result.data_bytes)}")
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result), default=str))
    else:
        for problem in result.problems:
            typer.echo(problem)
        verdict = f"{len(result.problems)} problems" if result.problems else "sound"
        typer.echo(
            f"{verdict}: {result.segment_count} segments, {result.transaction_count} transactions,"
            f" {result.change_count} changes, {show_size(result.data_bytes)},"
            f" {result.start} … {result.end}"
        )
    if result.problems:
        raise typer.Exit(1)


def _position(text: str) -> Offset:
    from tailrace.model import Offset

    try:
        return Offset.parse(text)
    except ValueError as error:
        raise ConfigError(f"{error}", hint="earliest, 0/16B3748 or 0/16B3748:3") from error
