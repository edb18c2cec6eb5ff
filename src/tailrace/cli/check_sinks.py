"""Can the sinks be reached, and do they take what the streams deliver?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.cli.config import Config
from tailrace.cli.sink_sections import ParquetSink, PostgresSink, QueueSink
from tailrace.cli.wiring import selection
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.finding import Finding
from tailrace.postgres.selection import Selection
from tailrace.sinks.parquet.check import check_place
from tailrace.sinks.postgres.check import check_target
from tailrace.sinks.postgres.opening import postgres_options
from tailrace.sinks.queue.check import check_queue

if TYPE_CHECKING:
    from tailrace.postgres.session import Connection


def sink_findings(conn: Connection, settings: Config) -> Iterator[Finding]:
    """What is told of the sink of each stream; `conn` is a session on the source."""
    tables = tables_matching(conn, selection(settings).patterns)
    for name, stream in settings.streams.items():
        asked = Selection(stream.tables)
        match stream.sink:
            case PostgresSink() as sink:
                target = postgres_options(sink.model_dump(by_alias=True))
                places = [
                    (target.schema or table.schema, table.name)
                    for table in tables
                    if asked.means(table)
                ]
                yield from check_target(target, f"stream {name}", places)
            case ParquetSink() as sink:
                yield from check_place(sink.path, f"stream {name}")
            case QueueSink() as sink:
                options = sink.model_dump()
                yield from check_queue(str(options["type"]), options, f"stream {name}")
            case _:
                pass
