"""Values from the WAL to typed columns, with capture between them: large ones, and those of tables
that were changed or dropped before capture came to read them.
"""

from __future__ import annotations

import hashlib
from datetime import date
from decimal import Decimal

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.decode import TableChanges
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import ORIGIN, Offset, Relation
from tailrace.postgres.session import connect
from tailrace.sinks.fold import fold
from tailrace.spark.planning import decode_pieces
from tailrace.storage import FileStore
from tests.capture.running import Running, settings, wait_caught_up
from tests.server import Database, Servers, both_versions

pytestmark = both_versions

LARGE_BYTES = 16 << 20
"""Beyond every limit of capture's buffers and of a segment; what is larger only takes longer."""


def decoded(store: FileStore, table: str) -> list[TableChanges]:
    """All changes of one table, by shape."""

    def wanted(relation: Relation) -> bool:
        return relation.qualified == table

    end = Offset.whole(Reader(store).tip().segment_end)
    planned = pieces(Reader(store), ORIGIN, end, wanted=wanted)
    return list(decode_pieces(store, planned, wanted, None))


def test_f046_large_values_are_carried(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE large (id int PRIMARY KEY, bytes bytea, words text)")
    with Running(settings(database.dsn), store) as capture:
        capture.wait_for_stream()
        value = hashlib.shake_256(b"large").digest(1 << 20) * (LARGE_BYTES >> 20)
        source.execute("INSERT INTO large VALUES (1, %b, repeat('é😀', 200000))", [value])
        source.execute("INSERT INTO large VALUES (2, '', '')")
        wait_caught_up(capture, source)
    rows = pa.concat_tables([each.rows for each in decoded(store, "public.large")])
    assert rows["bytes"].to_pylist() == [value, b""]
    assert rows["words"].to_pylist() == ["é😀" * 200_000, ""]


def test_f051_rows_that_swap_a_deferrable_key_are_both_there(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE swapped (id int PRIMARY KEY DEFERRABLE, v text)")
    source.execute("ALTER TABLE swapped REPLICA IDENTITY FULL")
    with Running(settings(database.dsn), store) as capture:
        capture.wait_for_stream()
        source.execute("INSERT INTO swapped VALUES (1, 'a'), (2, 'b')")
        source.execute("UPDATE swapped SET id = 3 - id")
        wait_caught_up(capture, source)
    runs = decoded(store, "public.swapped")
    rows = fold(TableChanges(runs[0].relation, pa.concat_tables(r.rows for r in runs))).upserts
    found = zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)
    assert sorted(found) == [(1, "b"), (2, "a")]


def test_f060_rows_of_what_is_gone_by_now_are_typed_as_they_were(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE DOMAIN price AS numeric(12,2)")
    source.execute("CREATE DOMAIN due AS date")
    for table in ("kept", "dropped", "renamed"):
        source.execute(
            sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, cost price, until due)").format(
                sql.Identifier(table)
            )
        )
    with Running(settings(database.dsn), store) as capture:
        capture.wait_for_stream()
    for table in ("kept", "dropped", "renamed"):
        source.execute(
            sql.SQL("INSERT INTO {} VALUES (1, 2.5, '2026-01-15')").format(sql.Identifier(table))
        )
    source.execute("ALTER TABLE kept DROP COLUMN cost, ALTER until TYPE text")
    source.execute("INSERT INTO kept VALUES (2, 'now text')")
    source.execute("ALTER TABLE renamed RENAME TO other")
    source.execute("INSERT INTO other VALUES (2, 3.5, NULL)")
    source.execute("DROP TABLE dropped; ALTER TABLE other ALTER until TYPE date")
    source.execute("DROP DOMAIN due")
    with Running(settings(database.dsn), store) as capture:
        capture.wait_for_stream()
        wait_caught_up(capture, source)
    typed = {"id": 1, "cost": Decimal("2.50"), "until": date(2026, 1, 15)}
    for table in ("kept", "dropped", "renamed"):
        first = decoded(store, f"public.{table}")[0]
        assert first.rows.select(list(typed)).to_pylist() == [typed], table
    assert decoded(store, "public.kept")[1].rows["until"].to_pylist() == ["now text"]
    assert decoded(store, "public.other")[0].rows["cost"].to_pylist() == [Decimal("3.50")]


def test_f066_bytes_of_no_encoding_are_captured(
    source_servers: Servers, version: int, store: FileStore
) -> None:
    ascii_database = source_servers(version).database("SQL_ASCII")
    with ascii_database as database, connect(database.dsn) as connection:
        connection.execute("CREATE TABLE public.item (id int PRIMARY KEY, name text)")
        with Running(settings(database.dsn), store) as capture:
            capture.wait_for_stream()
            connection.execute(r"INSERT INTO public.item VALUES (1, E'caf\351'), (2, E'\303\251')")
            wait_caught_up(capture, connection)
    (changes,) = decoded(store, "public.item")
    assert changes.rows["name"].to_pylist() == [None, "é"]
    assert changes.rows["_text"].to_pylist() == [[("name", "\\x636166e9")], None]
