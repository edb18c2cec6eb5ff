"""From a real Postgres to a lake, to another database and to change files: capture and pipeline
beside writers that do what is hard.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from tailrace.log import Reader
from tailrace.log.bases import newest_bases, newest_positions
from tailrace.model import Offset, Relation
from tailrace.sinks import open_sink
from tailrace.storage import FileStore, Store
from tests.capture.running import Running, settings, wait_caught_up
from tests.server import Database, Server
from tests.sinks.change_harness import Change, folded, in_order
from tests.spark.made_log import Row
from tests.streams.running import RunningPipeline, lake_rows, lake_stream, stream

ROUNDS = 60
WRITERS = 3

# Each writer has the keys of its own remainder, so that none waits for another.
_INSERT = sql.SQL(
    "INSERT INTO things SELECT k, 'new', k / 3.0, clock_timestamp(), gen_random_uuid(),"
    " (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"
    " FROM generate_series(%(first)s::int, %(last)s, %(step)s) k ON CONFLICT DO NOTHING"
)
_UPDATE = sql.SQL("UPDATE things SET note = %(note)s WHERE id %% %(step)s = %(rest)s AND id < 500")
_MOVE = sql.SQL("UPDATE things SET id = id + 3000 WHERE id = %(first)s")
_DELETE = sql.SQL("DELETE FROM things WHERE id %% %(step)s = %(rest)s AND id > 2000")


def _write(database: Database, number: int) -> None:
    random = Random(number)
    with database.connect() as connection:
        for round_number in range(ROUNDS):
            first = number + WRITERS * random.randrange(200)
            values = {
                "first": first,
                "last": first + WRITERS * random.randrange(20),
                "step": WRITERS,
                "rest": number,
                "note": f"{number} {round_number}",
            }
            for statement in random.sample([_INSERT, _UPDATE, _MOVE, _DELETE, _INSERT], k=3):
                try:
                    connection.execute(statement, values)
                except psycopg.errors.UniqueViolation:
                    continue  # a row was moved there before


def _rows(connection: psycopg.Connection, table: str) -> list[Row]:
    cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
    rows = [
        tuple(
            str(v) if column.type_display == "uuid" else v
            for v, column in zip(row, cursor.description or (), strict=True)
        )
        for row in cursor.fetchall()
    ]
    return sorted(rows, key=lambda row: repr(row[0]))


def _changes(spark: SparkSession, table: Path) -> list[Change]:
    """What plain Spark reads of change files, by their index."""
    entries = [json.loads(each.read_text()) for each in sorted(table.glob("_index/*.json"))]
    files = [str(table / file["path"]) for entry in entries for file in entry["files"]]
    newest = spark.read.parquet(files[-1]).schema
    reader = spark.read.schema(newest).option("basePath", str(table / "data"))
    return in_order([reader.parquet(*files).drop("_text", "at").toArrow().to_pylist()])


def _texts(rows: list[Row], relation: Relation) -> list[tuple[object, ...]]:
    """The columns that the base has, but for the time, as texts."""
    names = relation.column_names
    return sorted(
        (
            tuple(str(None if name == "at" else row[at]) for at, name in enumerate(names))
            for row in rows
        ),
        key=repr,
    )


def _relation(store: Store, name: str) -> Relation:
    """The table as its base has it."""
    bases = newest_bases(store).values()
    return next(base.relation for base in bases if base.relation.name == name)


def test_sinks_end_equal_to_the_source(
    spark: SparkSession, postgres: Server, database: Database, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "log")
    with database.connect() as connection, postgres.database() as target:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(
            "CREATE TABLE things (id bigint PRIMARY KEY, note text, amount numeric(12,2),"
            " at timestamptz, tag uuid, document text)"
        )
        connection.execute("CREATE TABLE pairs (a int, b text, PRIMARY KEY (b, a))")
        streams = [
            lake_stream("lake", tmp_path / "lake"),
            stream("copy", open_sink({"type": "postgres", "dsn": target.dsn})),
            stream("files", open_sink({"type": "parquet", "path": str(tmp_path / "changes")})),
        ]
        with (
            Running(settings(database.dsn), store) as capture,
            RunningPipeline(spark, store, tmp_path, *streams) as at_work,
        ):
            capture.wait_until(lambda: len(newest_positions(store)) == 2)
            for each in streams:
                at_work.wait_for_tables(each.name, "public.things", "public.pairs")
            writers = [
                threading.Thread(target=_write, args=(database, number))
                for number in range(WRITERS)
            ]
            for writer in writers:
                writer.start()
            connection.execute("INSERT INTO pairs SELECT g, g::text FROM generate_series(1, 50) g")
            connection.execute("UPDATE pairs SET a = a + 100 WHERE a % 2 = 0")
            connection.execute("TRUNCATE pairs")
            connection.execute("INSERT INTO pairs VALUES (1, 'x'), (1, 'y')")
            connection.execute("ALTER TABLE things ADD COLUMN added int DEFAULT NULL")
            for writer in writers:
                writer.join()
            connection.execute("UPDATE things SET added = 1 WHERE id % 2 = 0")
            wait_caught_up(capture, connection)
            end = Offset.whole(Reader(store).tip().segment_end)
            at_work.wait_for(end, *(each.name for each in streams))
        assert at_work.error is None
        things = _rows(connection, "things")
        assert len(things) > 100
        assert lake_rows(tmp_path / "lake", "public/things") == things
        assert lake_rows(tmp_path / "lake", "public/pairs") == _rows(connection, "pairs")
        with target.connect() as copy:
            copy.execute("SET timezone = 'UTC'")
            for table in ("things", "pairs"):
                assert _rows(copy, table) == _rows(connection, table)
        for table in ("things", "pairs"):
            relation = _relation(store, table)
            changes = _changes(spark, tmp_path / "changes/public" / table)
            assert folded(changes, relation) == _texts(_rows(connection, table), relation)
