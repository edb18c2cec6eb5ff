"""`tailrace log`: look into the change log."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import AsJson, ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log import Header, Reader
    from tailrace.model import Offset
    from tailrace.postgres.pattern import TablePattern

log = typer.Typer(help="Look into the change log.", no_args_is_help=True)

_From = Annotated[
    str,
    typer.Option(
        "--from", metavar="POSITION", help="Start after this: earliest, 0/16B3748 or 0/16B3748:3."
    ),
]


@log.command("ls")
def ls(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """List the segments in order, with the changes of each table; as JSON, one object a line.

    Example: tailrace log ls --json
    """
    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.log import Reader
    from tailrace.model import Offset
    from tailrace.storage import open_store

    reader = Reader(open_store(load(config).log.url))
    for link in reader.walk(Offset.whole(reader.begin())):
        header, tables = link.header, _counts(link.header)
        if as_json:
            value = {
                "key": link.key,
                "start": header.start,
                "end": header.end,
                "transactions": header.transaction_count,
                "changes": header.change_count,
                "bytes": link.data_bytes,
                "parts": len(header.parts),
                "tables": tables,
            }
            typer.echo(json_text(value))
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

    A change's _offset can be given to --from, to go on after it.

    Example: tailrace log cat --table public.orders --limit 5
    """
    from itertools import islice

    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.log import Reader
    from tailrace.model import Offset
    from tailrace.postgres.pattern import TablePattern
    from tailrace.storage import open_store

    pattern = TablePattern.parse(table)
    reader = Reader(open_store(load(config).log.url))
    after = Offset.whole(reader.begin()) if start == "earliest" else _position(start)
    is_found = False
    for row in islice(_rows(reader, after, pattern), limit):
        is_found = True
        typer.echo(json_text(row))
    if not is_found:
        typer.echo(f"the log has no change of {table} after {after}", err=True)


@log.command("verify")
def verify(config: ConfigFile = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Read the whole log and check chain, checksums and order.

    Changes nothing. Exit status 1 if anything is wrong.

    Example: tailrace log verify
    """
    from rich.console import Console

    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.cli.quantity import show_size
    from tailrace.log import Reader
    from tailrace.log.verify import Verification
    from tailrace.log.verify import verify as check
    from tailrace.storage import open_store

    store = open_store(load(config).log.url)
    Reader(store).begin()  # a log that is not there is an error, and no damage
    result = Verification()
    with Console(stderr=True).status("reading the log") as progress:
        for result in check(store):
            progress.update(f"{result.segment_count} segments, {show_size(result.data_bytes)}")
    if as_json:
        typer.echo(json_text(result))
    else:
        for problem in result.problems:
            typer.echo(problem)
        count = len(result.problems)
        verdict = f"{count} problem{'s' if count > 1 else ''}" if count else "sound"
        typer.echo(
            f"{verdict}: {result.segment_count} segments, {result.transaction_count} transactions,"
            f" {result.change_count} changes, {show_size(result.data_bytes)},"
            f" {result.base_count} bases,"
            f" {result.start} … {result.end}"
        )
    if result.problems:
        raise typer.Exit(1)


@log.command("compact")
def compact(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Only these: schema.table.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fold changes into newer bases, on Spark, so that retention may drop them.

    The pipeline does this by itself. Exit status 1 if a table cannot be folded
    to the end of the log; then it needs a new base.

    Example: tailrace log compact public.orders
    """
    from tailrace.cli.config import load
    from tailrace.cli.json_text import json_text
    from tailrace.cli.pipeline import start_spark, stop_spark
    from tailrace.compaction import Compactor, on_spark
    from tailrace.log import Reader
    from tailrace.storage import open_store

    settings = load(config)
    store = open_store(settings.log.url)
    Reader(store).begin()  # a log that is not there is an error, before spark is started
    spark = start_spark(settings)
    try:
        outcomes = Compactor(store, on_spark(spark)).compact(tables)
    finally:
        stop_spark(spark)
    for outcome in outcomes:
        if as_json:
            typer.echo(json_text(outcome))
        else:
            ending = f", not further: {outcome.reason}" if outcome.reason else ""
            typer.echo(f"{outcome.table}: base at {outcome.position}{ending}")
    if any(outcome.reason for outcome in outcomes):
        raise typer.Exit(1)


def _counts(header: Header) -> dict[str, int]:
    """The changes of each table; one that changed its shape is in the header more than once."""
    counts: Counter[str] = Counter()
    for use in header.relations:
        counts[use.relation.qualified] += use.change_count
    return dict(counts)


def _rows(reader: Reader, after: Offset, pattern: TablePattern) -> Iterator[dict[str, object]]:
    """The changes after a position, in order."""
    from tailrace.log.plan import pieces
    from tailrace.model import Lsn, Offset, Relation
    from tailrace.model.change import COMMIT_LSN, ORDINAL, TEXT
    from tailrace.spark.planning import decode_pieces

    def wanted(relation: Relation) -> bool:
        return pattern.matches(relation.schema, relation.name)

    upto = Offset.whole(reader.tip().segment_end)
    for piece in pieces(reader, after, upto, wanted=wanted):
        rows = [
            {
                "_table": changes.relation.qualified,
                "_offset": Offset(Lsn(row[COMMIT_LSN]), row[ORDINAL]),
                **row,
                TEXT: dict(row[TEXT] or ()) or None,
            }
            for changes in decode_pieces(reader.store, [piece], wanted, None)
            for row in changes.rows.to_pylist()
        ]
        yield from sorted(rows, key=itemgetter("_offset"))


def _position(text: str) -> Offset:
    from tailrace.model import Offset

    try:
        return Offset.parse(text)
    except ValueError as error:
        raise ConfigError(f"{error}", hint="earliest, 0/16B3748 or 0/16B3748:3") from error
