"""The SQL of the operator's page, as it is written there, against a pipeline at work."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from tailrace.control.schema import migrate
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.session import Connection, connect
from tailrace.sinks import Batch
from tailrace.sinks.memory import MemorySink
from tailrace.streams import Stream
from tailrace.streams.control import Control
from tailrace.streams.replay.request import to_time
from tests.capture.running import wait_until
from tests.server import Database
from tests.spark.made_log import MadeLog, Table
from tests.streams.by_hand import rows_of
from tests.streams.replaying import STREAM, time_of
from tests.streams.running import PATIENCE_S, RunningPipeline

PAGE: Final = Path(__file__).parents[2] / "docs/reference/replay.md"
ROWS: Final = 12


class Slow(MemorySink):
    """Takes its time for each batch of a replay, so that an operator can see it."""

    def write(self, batch: Batch) -> None:
        if batch.replay:
            time.sleep(0.5)
        super().write(batch)


class Page:
    """The statements of the page, for a time that the log has."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        text = PAGE.read_text()
        assert f"name = '{STREAM}'" in text
        for shown, number in (("10:00", 1), ("11:00", 2)):
            stamp = f"'2026-01-15 {shown}+00'"
            assert stamp in text
            text = text.replace(stamp, f"'{to_time(time_of(number))}'")
        found = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        self.available, self.trigger, self.watch, self.cancel = (each.encode() for each in found)

    def do(self, statement: bytes) -> None:
        assert self._conn.execute(statement).rowcount == 1

    def ask(self, statement: bytes) -> dict[str, object]:
        with self._conn.cursor(row_factory=dict_row) as cursor:
            (row,) = cursor.execute(statement).fetchall()
        return row

    def sees(self, **wanted: object) -> None:
        """Watch until it says so."""

        def is_so() -> bool:
            row = self.ask(self.watch)
            return all(row[name] == value for name, value in wanted.items())

        wait_until(is_so, patience_s=PATIENCE_S)

    def is_over(self, note: str) -> dict[str, object]:
        """Watch until both columns are NULL again and the note begins so."""

        def is_so() -> bool:
            return str(self.ask(self.watch)["replay_note"]).startswith(note)

        wait_until(is_so, patience_s=PATIENCE_S)
        row = self.ask(self.watch)
        assert row["replay_from_ts"] is None and row["replay_to_ts"] is None
        return row


def test_f105_sql_of_the_operators_page_does_what_the_page_says(
    spark: SparkSession, log: MadeLog, database: Database, tmp_path: Path
) -> None:
    table, sink = Table(), Slow()
    log.insert(table, 1, ROWS)
    log.commit(table, *(table.update(key, key, "now", None) for key in range(1, ROWS + 1)))
    control = Control(
        lambda: LockSession(database.dsn),
        log.store,
        source="tailrace_main",
        declared=[],
        resolve=lambda kept: Stream(kept.name, ["public.*"], lambda _: sink, changes_max=2),
    )
    with connect(database.dsn) as conn:
        migrate(conn)
        query = "INSERT INTO tailrace.streams (name, sink) VALUES (%s, %s)"
        conn.execute(query, (STREAM, Jsonb({"type": "memory"})))
        page = Page(conn)
        with RunningPipeline(spark, log.store, tmp_path, control=control) as pipeline:
            page.sees(status="healthy")
            wait_until(
                lambda: page.ask(page.available)["available_to_ts"] == to_time(time_of(2)),
                patience_s=PATIENCE_S,
            )
            pipeline.wait_for(log.end, STREAM)
            page.do(page.trigger)
            page.sees(status="replay", replay_from_ts=to_time(time_of(1)))
            page.is_over(f"done: {2 * ROWS} changes")
            page.sees(status="healthy")
            page.do(page.trigger)
            page.sees(status="replay")
            page.do(page.cancel)
            page.is_over("cancelled: ")
            page.sees(status="healthy")
            assert str(page.ask(page.available)["replay_note"]).startswith("cancelled: ")
    assert rows_of(sink) == table.rows
