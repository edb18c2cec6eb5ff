"""Writes the same rows through each sink and through a minimal writer, in turns, and times both."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from psycopg import sql

from bench.programs.talk import peak_memory_mb, say, task
from bench.programs.upsert import RELATION, changes_of
from tailrace.decode import TableChanges
from tailrace.model import META_COLUMNS, Lsn, Offset, Op
from tailrace.model.change import BEFORE, TEXT, UNCHANGED
from tailrace.sinks import Batch, Load, Sink
from tailrace.sinks.columns import Mode
from tailrace.sinks.parquet import ParquetOptions, ParquetSink
from tailrace.sinks.postgres import PostgresOptions, PostgresSink
from tailrace.spark.session import spark_session

_OWN: Final = list(RELATION.column_names)
_META: Final = [name for name in META_COLUMNS if name not in (UNCHANGED, BEFORE, TEXT)]
_COLUMNS: Final = sql.SQL(
    "id int8, customer int8, status text, price float8, note text, at timestamptz"
)
_META_COLUMNS: Final = sql.SQL(
    "_op text, _commit_lsn int8, _ordinal int8, _commit_ts timestamptz, _xid int8, _origin text"
)

Parts = list[pa.Table]


@dataclass
class Sinks:
    """`sequence` counts what was written to any of them."""

    dsn: str
    directory: Path
    sequence: int = 0
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def compare(
        self,
        name: str,
        ours: Callable[[], None],
        plain: Callable[[], None],
        rounds: int,
        **others: Callable[[], None],
    ) -> None:
        """Time both, and others, in turns."""
        sides = {"ours": ours, "plain": plain, **others}
        found = self.seconds[name] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, act in sides.items():
                began = time.monotonic()
                act()
                found[side].append(time.monotonic() - began)

    def write(self, sink: Sink, parts: Parts) -> None:
        """Each part as a batch."""
        for part in parts:
            self.sequence += 1
            after, upto = (Offset.whole(Lsn(0x1000 * (self.sequence + at))) for at in (0, 1))
            changes = TableChanges(RELATION, part)
            sink.write(Batch("bench", self.sequence, after, upto, [changes]))

    def load(self, sink: Sink, parts: Iterable[pa.Table]) -> None:
        """All parts as a whole table."""
        self.sequence += 1
        sink.load(Load("bench", self.sequence, RELATION, Lsn(self.sequence), 0), parts)

    def copy(
        self,
        parts: Parts,
        names: list[str],
        table: str,
        *,
        before: Sequence[sql.SQL | sql.Composed] = (),
        behind: Sequence[sql.SQL | sql.Composed] = (),
    ) -> None:
        """Each part as CSV into a table, in a transaction of its own."""
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for part in parts:
                text = io.BytesIO()
                options = pa.csv.WriteOptions(include_header=False)
                pa.csv.write_csv(part.select(names), text, options)
                with conn.transaction():
                    for each in before:
                        conn.execute(each)
                    with conn.cursor().copy(command.format(sql.Identifier(table), listed)) as copy:
                        copy.write(text.getbuffer())
                    for each in behind:
                        conn.execute(each)


def _execute(dsn: str, *commands: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for command in commands:
            conn.execute(command)


def _append(at: Sinks, parts: Parts, rounds: int) -> None:
    make = sql.SQL("CREATE TABLE plain_append ({}, {})")
    _execute(at.dsn, make.format(_COLUMNS, _META_COLUMNS))
    options = PostgresOptions(at.dsn, schema="append", mode=Mode.APPEND)
    with closing(PostgresSink(options)) as sink:
        sink.prepare(RELATION)
        at.compare(
            "postgres append",
            lambda: at.write(sink, parts),
            lambda: at.copy(parts, [*_OWN, *_META], "plain_append"),
            rounds,
        )


def _upsert(at: Sinks, inserts: Parts, updates: Parts, rounds: int) -> None:
    _execute(at.dsn, sql.SQL("CREATE TABLE plain ({}, PRIMARY KEY (id))").format(_COLUMNS))
    stage = sql.SQL("CREATE TEMP TABLE staged ({}) ON COMMIT DROP").format(_COLUMNS)
    values = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in _OWN[1:]]
    merge = sql.SQL(
        "INSERT INTO plain SELECT * FROM staged ON CONFLICT (id) DO UPDATE SET {}"
    ).format(sql.SQL(", ").join(values))

    def plain_load() -> None:
        at.copy([pa.concat_tables(inserts)], _OWN, "plain", before=[sql.SQL("DELETE FROM plain")])

    with closing(PostgresSink(PostgresOptions(at.dsn, schema="copy"))) as sink:
        sink.prepare(RELATION)
        at.compare("postgres load", lambda: at.load(sink, inserts), plain_load, rounds)
        # So that neither side meets the dead rows of the loads.
        _execute(at.dsn, sql.SQL("VACUUM FULL plain"), sql.SQL("VACUUM FULL copy.orders"))
        at.compare(
            "postgres upsert",
            lambda: at.write(sink, updates),
            lambda: at.copy(updates, _OWN, "staged", before=[stage], behind=[merge]),
            rounds,
        )


def _parquet(at: Sinks, parts: Parts, rounds: int) -> None:
    place = at.directory / "plain"
    place.mkdir()
    session = spark_session(master="local[2]", app_name="tailrace bench", work_dir=at.directory)

    # What is timed is Spark's write alone: its rows are in the JVM before.
    frames = [session.createDataFrame(part).cache() for part in parts]

    def plain() -> None:
        for frame in frames:
            frame.write.mode("append").parquet(str(at.directory / "spark"), compression="zstd")

    def with_pyarrow() -> None:
        for number, part in enumerate(parts):
            pq.write_table(part, place / f"{number}.parquet", compression="zstd")

    try:
        with closing(ParquetSink(ParquetOptions(str(at.directory / "changes")))) as sink:
            sink.prepare(RELATION)
            # What a JVM compiles, and the cache.
            plain()
            at.compare(
                "parquet", lambda: at.write(sink, parts), plain, rounds, pyarrow=with_pyarrow
            )
    finally:
        session.stop()


def main() -> None:
    """Measure all."""
    wanted = task()
    random = np.random.default_rng(1)
    count, size = wanted["rows"], wanted["batch_rows"]
    ids = [np.arange(first, min(first + size, count)) for first in range(0, count, size)]
    inserts = [changes_of(each, Op.INSERT, random) for each in ids]
    updates = [changes_of(each, Op.UPDATE, random) for each in ids]
    at = Sinks(wanted["dsn"], Path(wanted["directory"]))
    _append(at, inserts, wanted["rounds"])
    _upsert(at, inserts, updates, wanted["rounds"])
    _parquet(at, inserts, wanted["rounds"])
    say("done", seconds=at.seconds, memory_mb=peak_memory_mb())


if __name__ == "__main__":
    main()
