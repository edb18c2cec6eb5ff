"""Every value of every type arrives exactly, and Postgres itself is the judge.

A value is in its typed column, which written as text again is the source's own text, or its column
is NULL and its exact text is in `_text`.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tailrace.decode import arrow_schema
from tests.decode.kinds import KINDS
from tests.decode.live import Live
from tests.decode.slot import Slot
from tests.server import Database, Servers


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect() as opened:
        yield opened


def test_f063_f064_f065_f068_every_value_of_every_type_arrives_exactly(database: Database) -> None:
    with Live.on(database) as live:
        given = live.insert_edges("edge")
        (changes,) = live.streamed()
        schema = arrow_schema(changes.relation)
        assert {kind: schema.field(kind).type for kind in KINDS} == {
            kind: known.arrow for kind, known in KINDS.items()
        }
        live.assert_round_trip("edge", changes)
        kept = [[name for name, _ in row or ()] for row in changes.rows["_text"].to_pylist()]
        assert kept == [[kind] if text in KINDS[kind].unheld else [] for kind, text in given]


def test_f065_old_values_that_no_type_holds_are_kept_beside_the_new_ones(
    connection: psycopg.Connection,
) -> None:
    connection.execute("CREATE TABLE item (until date PRIMARY KEY, size numeric(4,2))")
    slot = Slot.create(connection)
    connection.execute("INSERT INTO item VALUES ('infinity', 'NaN')")
    connection.execute("UPDATE item SET until = '0044-03-15 BC'")
    connection.execute("DELETE FROM item")
    inserted, updated, deleted = slot.rows("public.item")
    assert inserted["_text"] == [("until", "infinity"), ("size", "NaN")]
    assert updated["_text"] == [
        ("until", "0044-03-15 BC"),
        ("size", "NaN"),
        ("_before.until", "infinity"),
    ]
    assert updated["_before"] == {"until": None, "size": None}
    assert deleted["_text"] == [("until", "0044-03-15 BC"), ("_before.until", "0044-03-15 BC")]


def test_f066_bytes_of_no_encoding_are_kept_as_hex(source_servers: Servers, version: int) -> None:
    with (
        source_servers(version).database("SQL_ASCII") as database,
        Live.on(database, types_made="") as live,
    ):
        live.create("item", {"name": "text", "at": "date", "words": "text[]"})
        live.app.execute(
            r"""INSERT INTO item (name, words) VALUES ('plain', E'{caf\351}'),
            (E'caf\351\n', NULL), (E'\303\251', '{}'), (E'\\351', NULL)"""
        )
        (changes,) = live.streamed()
        live.assert_round_trip("item", changes)
    rows = changes.rows.select(["name", "_text"]).to_pylist()
    assert [(row["name"], row["_text"]) for row in rows] == [
        ("plain", [("words", "\\x7b636166e97d")]),
        (None, [("name", "\\x636166e90a")]),
        ("é", None),
        ("\\351", None),
    ]


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "EUC_JP"])
def test_f066_other_encodings_are_read_as_utf8(
    source_servers: Servers, version: int, encoding: str
) -> None:
    with (
        source_servers(version).database(encoding) as database,
        Live.on(database, types_made="") as live,
    ):
        live.create("größe", {"é": "text"})
        live.insert("größe", {"é": ("text", KINDS["text"], "größe §")})
        (changes,) = live.streamed()
        assert changes.relation.qualified == "public.größe"
        live.assert_round_trip("größe", changes)
        assert changes.rows["é"].to_pylist() == ["größe §"]
