"""Do the streams ask for more than is captured, or than Postgres sends?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tailrace.cli.config import Config, Stream
from tailrace.cli.sink_sections import DeltaSink, PostgresSink
from tailrace.cli.wiring import selection
from tailrace.model import ReplicaIdentity
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.finding import Finding, blocker, warning
from tailrace.postgres.quote import qualified, shown
from tailrace.postgres.selection import Selection
from tailrace.where import columns_of, parse_where

if TYPE_CHECKING:
    from tailrace.postgres.session import Connection


def stream_findings(conn: Connection, settings: Config) -> Iterator[Finding]:
    """What is told of each stream."""
    captured = selection(settings)
    tables = tables_matching(conn, captured.patterns)
    partial = [table for table in tables if captured.is_inserts_only(table)]
    whole = [table for table in tables if table not in partial]
    for name, stream in settings.streams.items():
        asked = Selection(stream.tables)
        if isinstance(stream.sink, DeltaSink | PostgresSink) and stream.sink.mode != "append":
            mode = stream.sink.mode
            yield from _partial(name, mode, filter(asked.means, partial))
            if stream.key is None:
                yield from _keyless(name, mode, filter(asked.means, whole))
        yield from _without_old_row(name, stream, filter(asked.means, whole))


_CURE: Final = "give them a primary key, or a stream of their own with mode: append"


def _partial(name: str, mode: str, tables: Iterable[TableInfo]) -> Iterator[Finding]:
    """A stream that keeps rows as they are needs their updates and deletes."""
    taken = ", ".join(table.qualified for table in tables)
    if taken:
        message = f"mode {mode} needs a key, and only inserts are captured of {taken}"
        yield blocker(f"stream {name}", message, _CURE)


def _keyless(name: str, mode: str, tables: Iterable[TableInfo]) -> Iterator[Finding]:
    """Of rows that only their whole identifies, equal ones would become one."""
    taken = [each for each in tables if each.is_keyless]
    if taken:
        listed = ", ".join(each.qualified for each in taken)
        message = f"mode {mode} needs a key, and equal rows cannot be told apart of {listed}"
        yield blocker(f"stream {name}", message, _CURE)


def _without_old_row(name: str, stream: Stream, tables: Iterable[TableInfo]) -> Iterator[Finding]:
    """Whether a row was in the stream before an update is known by what Postgres sends of it."""
    if stream.where is None:
        return
    deciding = columns_of(parse_where(stream.where))
    for table in tables:
        unsent = sorted(deciding & {*table.columns} - {*table.identity_columns})
        if unsent and table.identity is not ReplicaIdentity.FULL:
            yield warning(
                f"stream {name}",
                f"where decides by {', '.join(unsent)}, which old rows of {table.qualified} do not "
                "come with: a row that is out after an update is told as deleted, also if it never "
                "was in; and the stream stops at an update that leaves a large value there alone",
                shown("ALTER TABLE {} REPLICA IDENTITY FULL;", qualified(table.schema, table.name)),
            )
