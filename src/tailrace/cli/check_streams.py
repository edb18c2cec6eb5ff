"""Do the streams ask for more than is captured?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.cli.config import Config, DeltaSink
from tailrace.cli.wiring import selection
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.finding import Finding, blocker
from tailrace.postgres.selection import Selection

if TYPE_CHECKING:
    from tailrace.postgres.session import Connection


def stream_findings(conn: Connection, settings: Config) -> Iterator[Finding]:
    """A stream that keeps rows as they are needs their updates and deletes."""
    captured = selection(settings)
    keyless = [
        table
        for table in tables_matching(conn, captured.patterns)
        if captured.is_inserts_only(table)
    ]
    for name, stream in settings.streams.items():
        asked = Selection(stream.tables)
        taken = ", ".join(table.qualified for table in keyless if asked.means(table))
        if taken and isinstance(stream.sink, DeltaSink) and stream.sink.mode != "append":
            yield blocker(
                f"stream {name}",
                f"mode {stream.sink.mode} needs a key, and only inserts are captured of {taken}",
                "give them a primary key, or a stream of their own with mode: append",
            )
