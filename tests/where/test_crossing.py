"""What a filtered stream folds to is the filtered table, whatever crosses the border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql

from tailrace.decode import TableChanges, decode
from tailrace.errors import SchemaError, SinkError
from tailrace.model import ORIGIN, Column, NamedType, Offset, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tailrace.sinks import Batch
from tailrace.sinks.memory import MemorySink
from tailrace.spark.selection import Selection
from tailrace.storage import MemoryStore
from tailrace.where import parse_where
from tailrace.where.crossing import filter_changes
from tests.decode import wire
from tests.decode.slot import Slot
from tests.server import Database, both_versions
from tests.spark.made_log import ORDERS, MadeLog, Row, Table
from tests.streams.by_hand import Run, WatchedSink, rows_of

FULL = replace(
    ORDERS,
    identity=ReplicaIdentity.FULL,
    columns=tuple(replace(column, in_identity=True) for column in ORDERS.columns),
)
TIMED = replace(ORDERS, columns=(*ORDERS.columns, Column("at", PgType.TIMESTAMP, -1, False)))
END = Offset.whole(1 << 62)


def _changes(
    relation: Relation, *frames: bytes, columns: Sequence[str] | None = None
) -> TableChanges:
    (found,) = decode(
        Frames.of([wire.begin(), *frames, wire.commit(100)]),
        initial={relation.oid: relation},
        versions={},
        after=ORIGIN,
        upto=END,
        columns=columns,
    )
    return found


def _filtered(relation: Relation, where: str, *frames: bytes) -> list[tuple[object, ...]]:
    rows = filter_changes(_changes(relation, *frames), parse_where(where)).rows
    rows.validate(full=True)
    names = ["_op", "id", "note", "_before"]
    return [tuple(row.values()) for row in rows.select(names).to_pylist()]


def _full(old: list[wire.Cell], new: list[wire.Cell]) -> bytes:
    return wire.update(FULL.oid, new, old=old)


def test_f061_update_that_crosses_the_border_is_an_insert_or_a_delete() -> None:
    a, b, c, d = (
        _full(["1", "in", None], ["1", "in", "5"]),
        _full(["2", "in", None], ["2", "out", None]),
        _full(["3", "out", None], ["3", "in", None]),
        _full(["4", "out", None], ["4", "out", "5"]),
    )
    before = {"amount": None}
    assert _filtered(FULL, "note = 'in'", a, b, c, d) == [
        ("update", 1, "in", {"id": 1, "note": "in", **before}),
        ("delete", 2, "in", {"id": 2, "note": "in", **before}),
        ("insert", 3, "in", None),
    ]


def test_f061_without_the_old_row_an_update_may_be_either() -> None:
    frames = [
        wire.update(ORDERS.oid, ["1", "in", None]),
        wire.update(ORDERS.oid, ["2", "out", None]),
        wire.update(ORDERS.oid, ["4", "out", None], key=["3", None, None]),
        wire.delete(ORDERS.oid, key=["5", None, None]),
    ]
    key = {"note": None, "amount": None}
    assert _filtered(ORDERS, "note = 'in'", *frames) == [
        ("update", 1, "in", None),
        ("delete", 2, None, {"id": 2, **key}),
        ("delete", 3, None, {"id": 3, **key}),
        ("delete", 5, None, {"id": 5, **key}),
    ]


def test_f061_key_that_decides_is_always_known() -> None:
    frames = [
        wire.update(ORDERS.oid, ["1", "a", None]),
        wire.update(ORDERS.oid, ["20", "b", None], key=["2", None, None]),
        wire.update(ORDERS.oid, ["3", "c", None], key=["30", None, None]),
        wire.delete(ORDERS.oid, key=["40", None, None]),
        wire.truncate(ORDERS.oid),
    ]
    assert [row[:2] for row in _filtered(ORDERS, "id < 10", *frames)] == [
        ("update", 1),
        ("delete", 2),
        ("insert", 3),
        ("truncate", None),
    ]


def test_f049_unsent_value_that_decides_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"did not send public\.orders\.note") as caught:
        _filtered(ORDERS, "note = 'in'", wire.update(ORDERS.oid, ["1", wire.UNSENT, None]))
    assert "REPLICA IDENTITY FULL" in caught.value.hint


def test_f049_unsent_value_of_a_row_that_comes_in_is_refused() -> None:
    update = wire.update(ORDERS.oid, ["3", wire.UNSENT, None], key=["30", None, None])
    with pytest.raises(SchemaError, match="comes into the stream"):
        _filtered(ORDERS, "id < 10", update)


@pytest.mark.parametrize("moved", [False, True])
def test_f049_unsent_value_of_a_row_that_comes_back_is_not_the_one_from_before(moved: bool) -> None:
    """The target still has the row, but the value changed while the row was out."""
    sink, selection = MemorySink(), Selection.of(columns=None, where="amount = 1")
    back = wire.update(ORDERS.oid, ["1", wire.UNSENT, "1"])
    if moved:
        back = wire.update(ORDERS.oid, ["2", wire.UNSENT, "1"], key=["1", None, None])
    batches = [
        [wire.insert(ORDERS.oid, ["1", "old", "1"])],
        [wire.update(ORDERS.oid, ["1", "new", "2"]), back],
    ]
    first, second = (
        Batch("s", number, ORIGIN, ORIGIN, [selection.apply(_changes(ORDERS, *frames))])
        for number, frames in enumerate(batches)
    )
    sink.write(first)
    with pytest.raises(SchemaError, match=r"orders\.note .* comes back into the stream"):
        sink.write(second)


def test_f049_full_identity_gives_the_unsent_value() -> None:
    update = _full(["1", "in", None], ["1", wire.UNSENT, "5"])
    assert _filtered(FULL, "note = 'in'", update)[0][:3] == ("update", 1, "in")


def test_f064_values_that_no_column_holds_are_compared_as_postgres_does() -> None:
    rows = [wire.insert(ORDERS.oid, [str(n), None, v]) for n, v in enumerate(["NaN", "1.00", None])]
    assert [row[1] for row in _filtered(ORDERS, "amount > 999999", *rows)] == [0]
    assert [row[1] for row in _filtered(ORDERS, "amount <= 1", *rows)] == [1]
    assert [row[1] for row in _filtered(ORDERS, "amount IS NULL", *rows)] == [2]
    moved = _full(["1", "a", "NaN"], ["1", "b", "0.00"])
    changes = filter_changes(_changes(FULL, moved), parse_where("amount > 5")).rows
    (row,) = changes.to_pylist()
    assert (row["_op"], row["_text"]) == ("delete", [("amount", "NaN"), ("_before.amount", "NaN")])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("gone = 1", "has no column gone"),
        ("note > 'a'", "by > with 'a', which its type does not allow"),
        ("id = 'x'", "by = with 'x'"),
        ("amount LIKE '1%'", "is no text"),
        ("note = 5", "by = with 5"),
        ("at = '2024-01-01 12:00:00.1234567'", "by = with '2024"),
    ],
)
def test_where_that_does_not_fit_the_table_is_refused(where: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        _filtered(TIMED, where, wire.insert(ORDERS.oid, ["1", "a", "1", None]))


def test_a_domain_over_a_type_that_may_be_citext_is_refused() -> None:
    mail = Column("mail", 70_001, -1, False)
    domain = NamedType(70_001, "mail", 70_000)
    people = replace(ORDERS, columns=(*ORDERS.columns, mail), type_names=(domain,))
    frame = wire.insert(ORDERS.oid, ["1", "a", "1", "Ann@example.org"])
    with pytest.raises(SchemaError, match="which its type does not allow"):
        _filtered(people, "mail = 'ann@example.org'", frame)
    assert len(_filtered(people, "mail IS NOT NULL", frame)) == 1


def _change(table: Table, random: Random, *, is_full: bool) -> bytes | None:
    """One random change, with the whole old row or with what the key tells."""
    old = random.choice(list(table.by_key)) if table.by_key else None
    new, amount = random.randint(1, 30), random.randint(0, 9)
    row: Row = (new, random.choice(["in", "out", None]), amount)
    if old is None or random.random() < 0.4:
        return table.insert(*row) if new not in table.by_key else None
    before = _texts(table.by_key[old])
    if random.random() < 0.3:
        frame = table.delete(old)
        return wire.delete(table.relation.oid, old=before) if is_full else frame
    if new in table.by_key and new != old:
        row = (old, *row[1:])
    frame = table.update(old, *row)
    return wire.update(table.relation.oid, _texts(row), old=before) if is_full else frame


def _texts(row: Row) -> list[wire.Cell]:
    return [None if value is None else str(value) for value in row]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_filtered_stream_equals_the_filtered_table(
    seed: int, is_full: bool, is_narrow: bool
) -> None:
    random, sink, table = Random(seed), MemorySink(), Table(FULL if is_full else ORDERS)
    columns = ("id", "amount") if is_narrow else None
    selection = Selection.of(columns=columns, where="note = 'in' AND amount >= 3")
    for number in range(20):
        frames = [_change(table, random, is_full=is_full) for _ in range(random.randint(1, 4))]
        told = [frame for frame in frames if frame is not None]
        if not told:
            continue
        changes = _changes(table.relation, *told, columns=selection.read_columns)
        batch = Batch("s", number, ORIGIN, ORIGIN, [selection.apply(changes)])
        sink.write(batch)
    wanted = [row for row in table.rows if row[1] == "in" and int(str(row[2])) >= 3]
    sink.prepare(selection.narrow(table.relation))
    assert [row[0] for row in rows_of(sink)] == [row[0] for row in wanted]
    assert [row[-1] for row in rows_of(sink)] == [row[-1] for row in wanted]


def test_filtered_stream_is_loaded_and_followed() -> None:
    log, sink, table = MadeLog(MemoryStore(), has_bases=False), WatchedSink(), Table()
    table.by_key = {key: (key, "in" if key % 2 else "out", key) for key in range(1, 6)}
    log.base_of(table)
    selection = Selection.of(columns=("id",), where="note = 'in'")
    log.commit(table, table.update(1, 1, "out", 1), table.update(2, 2, "in", 1))
    Run(log.store, sink, selection=selection).to_end()
    assert rows_of(sink) == [(2,), (3,), (5,)]
    assert sink.loads[0].relation.column_names == ("id",)


def test_other_selection_takes_up_every_table_anew() -> None:
    log, sink = MadeLog(MemoryStore(), has_bases=False), WatchedSink()
    table = Table()
    table.by_key = {key: (key, "in" if key % 2 else "out", key) for key in range(1, 6)}
    log.base_of(table)
    log.insert(table, 7)
    Run(log.store, sink, selection=Selection.of(columns=None, where="note = 'in'")).to_end()
    Run(log.store, sink, selection=Selection.of(columns=None, where="note = 'out'")).to_end()
    assert [row[0] for row in rows_of(sink)] == [2, 4]
    Run(log.store, sink).to_end()
    assert rows_of(sink) == table.rows
    assert len(sink.loads) == 3


def test_columns_without_the_key_are_refused_by_an_upsert() -> None:
    log = MadeLog(MemoryStore())
    log.insert(Table(), 1)
    with pytest.raises((SchemaError, SinkError), match="key"):
        Run(log.store, WatchedSink(), selection=Selection.of(columns=("note",), where=None))


def test_column_that_the_table_lacks_is_named() -> None:
    log = MadeLog(MemoryStore())
    log.insert(Table(), 1)
    with pytest.raises(SchemaError, match="no column gone, which the stream is to deliver"):
        Run(log.store, WatchedSink(), selection=Selection.of(columns=("id", "gone"), where=None))


PREDICATES = [
    "i > 1.5",
    "i <= -1.5",
    "i = 9223372036854775808",
    "i < 1e30",
    "NOT i = 2",
    "i IN (1, 3) OR b",
    "NOT b",
    "n >= 1.50",
    "n <> 2",
    "n > 1.495",
    "n < 1.505",
    "n = 1.505",
    "n >= -9999999999.999",
    "n < 1e11",
    "n > -1e400",
    "free > 0.1",
    "free = 1e3",
    "free = 'NaN'",
    "free NOT IN ('NaN', '-Infinity')",
    "f > 0.5",
    "f <= 1",
    "f = 0.1",
    "r = 0.5",
    "t = 'a''b'",
    "t <> ''",
    "t LIKE '%\\%_'",
    "t ILIKE 'É%'",
    "t LIKE 'a.c'",
    "c = 'ab'",
    "d >= '2024-02-29'",
    "d BETWEEN '0001-01-01' AND '9999-12-31'",
    "ts < '2024-01-01 12:00:00.5'",
    "tz = '2024-01-01 12:00:00+02'",
    "u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
    "e IN ('sad', 'ok')",
    "t IS NULL AND NOT (i IS NULL)",
    "i = 1 OR t = 'x' AND n IS NOT NULL",
]
ROWS = [
    (
        "1",
        "t",
        "1.50",
        "1000",
        "0.1",
        "0.5",
        "a'b",
        "ab",
        "2024-02-29",
        "2024-01-01 12:00:00.5",
        "2024-01-01 10:00:00+00",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "sad",
    ),
    (
        "2",
        "f",
        "NaN",
        "NaN",
        "NaN",
        "NaN",
        "",
        "ab ",
        "infinity",
        "-infinity",
        "infinity",
        None,
        "ok",
    ),
    (
        "-2",
        None,
        "2.00",
        "0.10",
        "Infinity",
        "-Infinity",
        "x%y",
        "abc",
        "0044-03-15 BC",
        "0001-01-01 00:00:00",
        "2024-01-01 12:00:00+02",
        None,
        "happy",
    ),
    (
        "3",
        "t",
        None,
        "-Infinity",
        "1",
        None,
        "école",
        None,
        "5874897-12-31",
        "294276-12-31 23:59:59",
        None,
        None,
        None,
    ),
    (None, None, None, None, None, None, None, None, None, None, None, None, None),
    (
        "9223372036854775807",
        "t",
        "-1.50",
        "1e200",
        "-0",
        "1e-30",
        "a.c",
        "",
        "9999-12-31",
        None,
        None,
        None,
        None,
    ),
]


@both_versions
def test_f061_where_says_what_postgres_says(database: Database) -> None:
    with database.connect() as connection:
        slot = Slot.create(connection)
        _make_values(connection)
        changes = next(each for each in slot.changes() if each.relation.name == "v")
        for where in PREDICATES:
            query = sql.SQL("SELECT id FROM v WHERE {} ORDER BY id").format(sql.SQL(where))
            expected = [row[0] for row in connection.execute(query).fetchall()]
            found = filter_changes(changes, parse_where(where)).rows["id"].to_pylist()
            assert found == expected, where


def _make_values(connection: psycopg.Connection) -> None:
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
    connection.execute(
        "CREATE TABLE v (id int PRIMARY KEY, i int8, b bool, n numeric(12,2), free numeric,"
        " f float8, r float4, t text, c char(5), d date, ts timestamp, tz timestamptz, u uuid,"
        " e mood)"
    )
    for number, row in enumerate(ROWS):
        places = sql.SQL(", ").join([sql.Placeholder()] * (len(row) + 1))
        connection.execute(sql.SQL("INSERT INTO v VALUES ({})").format(places), [number, *row])
