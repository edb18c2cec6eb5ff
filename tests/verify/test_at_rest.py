"""Source and lake at rest: equal if they are, and any one difference is found and named."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg import sql
from rich.console import Console

from tailrace.cli import shop
from tailrace.cli.differences import show
from tailrace.cli.shop.trade import TRADES
from tailrace.verify.at_rest import compare_at_rest
from tailrace.verify.delta import DeltaRows
from tailrace.verify.result import TableResult
from tests.server import Database, Server, both_versions, older_version

Row: TypeAlias = dict[str, Any]

CREATE = """
CREATE TABLE things (
    id bigint PRIMARY KEY, small smallint, label text, code char(4), price numeric(12, 8),
    free numeric, ratio double precision, weight real, active boolean, born date,
    at timestamp, seen timestamptz, token uuid, extra jsonb, raw bytea, tags text[], span interval
)
"""

TEXTS = pa.map_(pa.string(), pa.string())
_TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "small": pa.int16(),
    "label": pa.string(),
    "code": pa.string(),
    "price": pa.decimal128(12, 8),
    "free": pa.string(),
    "ratio": pa.float64(),
    "weight": pa.float32(),
    "active": pa.bool_(),
    "born": pa.date32(),
    "at": pa.timestamp("us"),
    "seen": pa.timestamp("us", tz="UTC"),
    "token": pa.string(),
    "extra": pa.string(),
    "raw": pa.binary(),
    "tags": pa.string(),
    "span": pa.string(),
    "_text": TEXTS,
}
SCHEMA = pa.schema(_TYPES)

INSERT = """
INSERT INTO things VALUES
(1, -5, 'naïve, "x"', 'ab', 0.00000001, 12345678901234567890.5, 0.1, 1e-30, true, '2024-02-29',
 '2024-02-29 10:00:00.5', '2024-02-29 10:00:00.123456+02', '00000000-0000-4000-8000-00000000000a',
 '{"b": 1, "a": [null, "é"]}', '\\x00ff', '{a,NULL,"b c"}', '1 day 02:00:00'),
(2, NULL, '', NULL, -0, 'NaN', 'NaN', '-Infinity', false, '0044-03-15 BC',
 '12024-01-01', '1969-12-31 23:59:59.999999+00', NULL, 'null', '', '{}', NULL),
(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
(4, 0, 'unholdable', '', 'NaN', NULL, '-0', NULL, NULL, 'infinity', 'infinity', '-infinity',
 NULL, NULL, NULL, NULL, NULL)
"""

CAESAR_DAYS = -735160  # 15 March 44 BC, in the calendar that Postgres counts in
FAR_US = 317_273_587_200_000_000  # the first of January 12024


def rows() -> list[Row]:
    """What `INSERT` put in, as the lake has it."""
    nothing: Row = dict.fromkeys(SCHEMA.names)
    return [
        nothing
        | {
            "id": 1,
            "small": -5,
            "label": 'naïve, "x"',
            "code": "ab  ",
            "price": Decimal("0.00000001"),
            "free": "12345678901234567890.5",
            "ratio": 0.1,
            "weight": 1e-30,
            "active": True,
            "born": date(2024, 2, 29),
            "at": datetime(2024, 2, 29, 10, 0, 0, 500000),
            "seen": datetime(2024, 2, 29, 8, 0, 0, 123456, tzinfo=UTC),
            "token": "00000000-0000-4000-8000-00000000000a",
            "extra": '{"a": [null, "é"], "b": 1}',
            "raw": b"\x00\xff",
            "tags": '{a,NULL,"b c"}',
            "span": "1 day 02:00:00",
        },
        nothing
        | {
            "id": 2,
            "label": "",
            "price": Decimal(0),
            "free": "NaN",
            "ratio": float("nan"),
            "weight": float("-inf"),
            "active": False,
            "born": CAESAR_DAYS,
            "at": FAR_US,
            "seen": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            "extra": "null",
            "raw": b"",
            "tags": "{}",
        },
        nothing | {"id": 3},
        nothing
        | {
            "id": 4,
            "small": 0,
            "label": "unholdable",
            "code": "    ",
            "ratio": -0.0,
            "_text": [
                ("price", "NaN"),
                ("born", "infinity"),
                ("at", "infinity"),
                ("seen", "-infinity"),
            ],
        },
    ]


def write_lake(lake: Path, lake_rows: Iterable[Row], table: str = "things") -> None:
    """Write a lake table without any of the code that delivers changes."""
    columns = {
        name: pa.array([r[name] for r in lake_rows], SCHEMA.field(name).type)
        for name in SCHEMA.names
    }
    write_deltalake(str(lake / "public" / table), pa.table(columns), mode="overwrite")


def compare_things(database: Database, lake: Path) -> TableResult:
    (result,) = compare_at_rest(database.dsn, str(lake), ["public.things"])
    return result


def create(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(CREATE)
        connection.execute(INSERT)


@pytest.fixture(scope="module")
def source(postgres: Server) -> Iterator[Database]:
    """A database with the table `things`, which no test changes."""
    with postgres.database() as database:
        create(database)
        yield database


def test_equal_tables_are_equal(source: Database, tmp_path: Path) -> None:
    write_lake(tmp_path, rows())
    assert compare_things(source, tmp_path) == TableResult("public.things", 4, 4, True)


def test_the_order_of_rows_and_columns_does_not_matter(source: Database, tmp_path: Path) -> None:
    lake_rows = rows()[::-1]
    names = SCHEMA.names[::-1]
    columns = {
        name: pa.array([r[name] for r in lake_rows], SCHEMA.field(name).type) for name in names
    }
    write_deltalake(str(tmp_path / "public" / "things"), pa.table(columns))
    assert compare_things(source, tmp_path).equal


PLANTED: dict[str, tuple[int, str, object]] = {
    "a number": (0, "small", -4),
    "a text": (0, "label", 'naive, "x"'),
    "the padding of char(n)": (0, "code", "ab"),
    "the last digit of a numeric": (0, "price", Decimal("0.00000002")),
    "a digit of a numeric kept as text": (0, "free", "12345678901234567890.6"),
    "the last bit of a float": (0, "ratio", 0.1 + 2**-56),
    "the sign of zero": (3, "ratio", 0.0),
    "NaN to NULL": (1, "ratio", None),
    "an infinity": (1, "weight", float("inf")),
    "a boolean": (0, "active", False),
    "false to NULL": (1, "active", None),
    "a day": (0, "born", date(2024, 3, 1)),
    "a day BC": (1, "born", CAESAR_DAYS + 1),
    "a microsecond": (0, "at", datetime(2024, 2, 29, 10, 0, 0, 500001)),
    "a microsecond far away": (1, "at", FAR_US + 1),
    "an hour of a timestamptz": (
        0,
        "seen",
        datetime(2024, 2, 29, 10, 0, 0, 123456, tzinfo=UTC),
    ),
    "a uuid": (0, "token", "00000000-0000-4000-8000-00000000000b"),
    "a key of a jsonb": (0, "extra", '{"a": [null, "é"], "c": 1}'),
    "a byte": (0, "raw", b"\x00\xfe"),
    "an array": (0, "tags", '{a,NULL,"b  c"}'),
    "an interval": (0, "span", "1 day 02:00:01"),
    "NULL to empty": (2, "label", ""),
    "empty to NULL": (1, "label", None),
    "empty bytes to NULL": (1, "raw", None),
    "jsonb null to NULL": (1, "extra", None),
    "NULL to zero": (2, "small", 0),
    "NULL to the word": (2, "label", "NULL"),
    "NULL to how it is framed": (2, "label", "-,"),
    "an unholdable value lost": (3, "_text", None),
    "an unholdable value changed": (
        3,
        "_text",
        [("price", "NaN"), ("born", "infinity"), ("at", "infinity"), ("seen", "infinity")],
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_one_changed_value_is_red(source: Database, tmp_path: Path, planted: str) -> None:
    position, column, value = PLANTED[planted]
    lake_rows = rows()
    lake_rows[position][column] = value
    write_lake(tmp_path, lake_rows)
    result = compare_things(source, tmp_path)
    assert not result.equal
    (difference,) = result.differences
    assert difference.key == {"id": str(position + 1)}
    assert column == "_text" or difference.columns == (column,)


@older_version
def test_older_postgres_hashes_and_prints_alike(database: Database, tmp_path: Path) -> None:
    create(database)
    write_lake(tmp_path, rows())
    assert compare_things(database, tmp_path).equal
    write_lake(tmp_path, rows()[1:])
    assert [d.key for d in compare_things(database, tmp_path).differences] == [{"id": "1"}]


def test_a_missing_row_is_red(source: Database, tmp_path: Path) -> None:
    write_lake(tmp_path, rows()[1:])
    result = compare_things(source, tmp_path)
    assert (result.equal, result.source_rows, result.lake_rows) == (False, 4, 3)
    (difference,) = result.differences
    assert difference.lake is None
    assert difference.source is not None and difference.source["ratio"] == "0.1"


def test_a_row_too_many_is_red(source: Database, tmp_path: Path) -> None:
    write_lake(tmp_path, [*rows(), rows()[0] | {"id": 5}])
    result = compare_things(source, tmp_path)
    assert not result.equal
    assert [(d.key, d.source) for d in result.differences] == [({"id": "5"}, None)]


def test_a_doubled_row_is_red(source: Database, tmp_path: Path) -> None:
    write_lake(tmp_path, [*rows(), rows()[0]])
    result = compare_things(source, tmp_path)
    assert (result.equal, result.lake_rows) == (False, 5)
    assert [(d.key, d.source) for d in result.differences] == [({"id": "1"}, None)]


def test_one_row_doubled_for_one_missing_is_red(source: Database, tmp_path: Path) -> None:
    write_lake(tmp_path, [*rows()[1:], rows()[1]])
    result = compare_things(source, tmp_path)
    assert (result.equal, result.source_rows, result.lake_rows) == (False, 4, 4)
    assert {d.key["id"] for d in result.differences} == {"1", "2"}


def test_values_exchanged_between_rows_are_red(source: Database, tmp_path: Path) -> None:
    lake_rows = rows()
    lake_rows[0]["small"], lake_rows[3]["small"] = lake_rows[3]["small"], lake_rows[0]["small"]
    write_lake(tmp_path, lake_rows)
    assert len(compare_things(source, tmp_path).differences) == 2


def test_values_exchanged_between_columns_are_red(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE pairs (a text, b text)")
        connection.execute("INSERT INTO pairs VALUES ('x', 'yz')")
    for a, b in [("yz", "x"), ("xy", "z"), ("x", "yz")]:
        lake = pa.table({"a": [a], "b": [b]})
        write_deltalake(str(tmp_path / "public" / "pairs"), lake, mode="overwrite")
        (result,) = compare_at_rest(database.dsn, str(tmp_path), ["public.pairs"])
        assert result.equal == (a == "x")


def test_a_missing_lake_table_is_red(source: Database, tmp_path: Path) -> None:
    result = compare_things(source, tmp_path)
    assert not result.equal
    assert "no lake table at" in result.problem


def test_a_missing_source_table_is_red(database: Database, tmp_path: Path) -> None:
    assert compare_things(database, tmp_path).problem == "the source has no such table"


def test_a_column_that_the_lake_lacks_counts_as_null(database: Database, tmp_path: Path) -> None:
    """Postgres sends a new column with the next row that is written, not before."""
    create(database)
    write_lake(tmp_path, rows())
    with database.connect() as connection:
        connection.execute("ALTER TABLE things ADD COLUMN added int, ADD COLUMN more int")
        result = compare_things(database, tmp_path)
        assert (result.equal, result.source_rows, result.lake_rows) == (True, 4, 4)
        assert result.problem == "the lake table has no column added, more"
        connection.execute("UPDATE things SET more = 1 WHERE id = 2")
    (difference,) = compare_things(database, tmp_path).differences
    assert (difference.key, difference.columns) == ({"id": "2"}, ("more",))


def test_a_column_that_the_source_has_dropped_is_no_difference(
    database: Database, tmp_path: Path
) -> None:
    create(database)
    write_lake(tmp_path, rows())
    with database.connect() as connection:
        connection.execute("ALTER TABLE things DROP COLUMN label")
    assert compare_things(database, tmp_path).equal


def test_a_generated_column_counts_only_if_the_lake_has_it(
    database: Database, tmp_path: Path
) -> None:
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE sums (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a + 1) STORED)"
        )
        connection.execute("INSERT INTO sums VALUES (1)")
    for lake, equal in [
        ({"a": [1]}, True),
        ({"a": [1], "b": [2]}, True),
        ({"a": [1], "b": [3]}, False),
    ]:
        write_deltalake(
            str(tmp_path / "public" / "sums"),
            pa.table(lake),
            mode="overwrite",
            schema_mode="overwrite",
        )
        (result,) = compare_at_rest(database.dsn, str(tmp_path), ["public.sums"])
        assert result.equal == equal


@both_versions
def test_f069_names_are_only_names(database: Database, tmp_path: Path) -> None:
    schema, table, column = 'S "x" %s', "t'; DROP TABLE a; --", 'c %s {} "q" %(x)s'
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        create = sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {} text)")
        connection.execute(create.format(sql.Identifier(schema, table), sql.Identifier(column)))
        insert = sql.SQL("INSERT INTO {} VALUES (1, 'x')").format(sql.Identifier(schema, table))
        connection.execute(insert)
    place = tmp_path / "S~20~22x~22~20~25s" / "t~27~3B~20DROP~20TABLE~20a~3B~20--"
    for value in ("x", "y"):
        write_deltalake(str(place), pa.table({"id": [1], column: [value]}), mode="overwrite")
        (result,) = compare_at_rest(database.dsn, str(tmp_path), [f"{schema}.{table}"])
        assert (result.problem, result.equal) == ("", value == "x")


def test_partitions_are_read_through_their_root(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE p (a int PRIMARY KEY) PARTITION BY RANGE (a)")
        connection.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
        connection.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
        connection.execute("INSERT INTO p VALUES (1), (11)")
    write_deltalake(str(tmp_path / "public" / "p"), pa.table({"a": [11, 1]}))
    (result,) = compare_at_rest(database.dsn, str(tmp_path), ["public.p"])
    assert (result.equal, result.source_rows) == (True, 2)


def test_all_tables_are_read_under_one_snapshot(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that commits between two tables is in neither of them."""
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)"
        )
    for table in "ab":
        empty = pa.schema({"id": pa.int32()}).empty_table()
        write_deltalake(str(tmp_path / "public" / table), empty)

    opened: Callable[..., Any] = DeltaRows.open

    def open_and_write(uri: str, version: int | None = None) -> object:
        with database.connect() as connection:
            connection.execute("INSERT INTO a SELECT count(*) FROM a")
            connection.execute("INSERT INTO b SELECT count(*) FROM b")
        return opened(uri, version)

    monkeypatch.setattr(DeltaRows, "open", open_and_write)
    results = compare_at_rest(database.dsn, str(tmp_path), ["public.a", "public.b"])
    assert [(result.source_rows, result.equal) for result in results] == [(0, True), (0, True)]


def test_many_differences_are_shown_as_a_few(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE n (id int PRIMARY KEY, v int)")
        connection.execute("INSERT INTO n SELECT i, i FROM generate_series(1, 3000) AS i")
    ids = list(range(1, 3001))
    lake = pa.table({"id": pa.array(ids, pa.int32()), "v": pa.array([0] * 3000, pa.int32())})
    write_deltalake(str(tmp_path / "public" / "n"), lake)
    (result,) = compare_at_rest(database.dsn, str(tmp_path), ["public.n"])
    assert (result.equal, result.source_rows, result.lake_rows) == (False, 3000, 3000)
    assert len(result.differences) == 5
    assert all(d.columns == ("v",) for d in result.differences)


def test_a_comparison_is_shown_with_its_reasons(source: Database, tmp_path: Path) -> None:
    lake_rows = [*rows()[1:], rows()[0] | {"id": 5}]
    lake_rows[0]["label"] = "x" * 100
    write_lake(tmp_path, lake_rows)
    results = compare_at_rest(source.dsn, str(tmp_path), ["public.things", "public.none"])
    console = Console(width=400, file=io.StringIO())
    with console.capture() as shown:
        console.print(show(results))
    text = shown.get()
    assert "NO" in text
    assert "id='1' is not in the lake: id='1' small='-5'" in text
    assert "id='5' is only in the lake" in text
    assert f"id='2' differs: label is '', in the lake '{'x' * 60}…'" in text
    assert "public.none: the source has no such table" in text


_LAKE_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "float8": pa.float64(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "numeric": pa.decimal128(12, 2),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}


def copy_to_lake(connection: psycopg.Connection, table: str, lake: Path) -> None:
    """A lake table made of a plain SELECT."""
    cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
    assert cursor.description is not None
    found = cursor.fetchall()
    columns = {}
    for position, column in enumerate(cursor.description):
        kind = connection.adapters.types[column.type_code].name
        values = [row[position] for row in found]
        if kind not in _LAKE_TYPES:
            cast = sql.SQL("SELECT {}::text FROM {}").format(
                sql.Identifier(column.name), sql.Identifier(table)
            )
            values = [value for (value,) in connection.execute(cast)]
        columns[column.name] = pa.array(values, _LAKE_TYPES.get(kind, pa.string()))
    write_deltalake(str(lake / "public" / table), pa.table(columns))


def test_the_shop_can_be_compared(database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        shop.create(connection)
        shop.stock(connection)
        random_trades = random.Random(2)
        for trade in list(TRADES) * 5:
            with connection.transaction():
                trade(connection, random_trades)
        for table in shop.TABLES:
            copy_to_lake(connection, table.removeprefix("public."), tmp_path)
        results = compare_at_rest(database.dsn, str(tmp_path), shop.TABLES)
        assert [(result.table, result.equal) for result in results] == [
            (t, True) for t in shop.TABLES
        ]
        assert all(result.source_rows > 0 for result in results)
        connection.execute(
            "UPDATE orders SET total = total + 0.01 WHERE id = (SELECT max(id) FROM orders)"
        )
        results = compare_at_rest(database.dsn, str(tmp_path), shop.TABLES)
    assert [result.table for result in results if not result.equal] == ["public.orders"]
