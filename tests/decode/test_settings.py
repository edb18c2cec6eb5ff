"""No default of a server, a database, a role or the environment changes the text of a value."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.model import Lsn
from tailrace.postgres.replication import ReplicationConnection
from tailrace.postgres.session import connect
from tests.decode.live import copied
from tests.server import Database, ServerFactory

HOSTILE = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-7",
    "bytea_output": "escape",
    "lc_monetary": "C.utf8",
    "xmlbinary": "hex",
    "xmloption": "document",
    "client_encoding": "LATIN1",
    "quote_all_identifiers": "on",
    "search_path": "pg_catalog, public",
    "array_nulls": "off",
    "backslash_quote": "on",
    "standard_conforming_strings": "off",
    "default_text_search_config": "pg_catalog.german",
}

VALUES = {
    "timestamptz": ("2026-01-15 10:00:00+00", "2026-01-15 10:00:00+00"),
    "timestamp": ("2026-02-01 10:00:00", "2026-02-01 10:00:00"),
    "date": ("0044-03-02 BC", "0044-03-02 BC"),
    "timetz": ("10:00:00-08:30", "10:00:00-08:30"),
    "interval": ("1 year 2 mons -3 days", "1 year 2 mons -3 days"),
    "float8": ("0.1234567890123456", "0.1234567890123456"),
    "float4": ("1.2345678", "1.2345678"),
    "point": ("(0.1234567890123456,1)", "(0.1234567890123456,1)"),
    "bytea": ("\\x00ff5c41", "\\x00ff5c41"),
    "money": ("-1234.5", "-$1,234.50"),
    "text": ("größe", "größe"),
    "regclass": ("public.item", "public.item"),
    "regtype": ("int4", "integer"),
    "timestamptz[]": ("{2026-01-15 10:00:00+00}", '{"2026-01-15 10:00:00+00"}'),
    "tstzrange": ("[2026-01-15 10:00:00+00,)", '["2026-01-15 10:00:00+00",)'),
    "text[]": ("{NULL,a}", "{NULL,a}"),
}
"""What is written, and the text that must be read."""


@pytest.fixture
def hostile(
    postgres_server: ServerFactory, version: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Database, str]]:
    """A database that sets everything otherwise, in every place where it can be set, and how its
    role `capture` connects.
    """
    server = postgres_server(
        {"DateStyle": "German", "TimeZone": "Asia/Tokyo"}, version=version, tcp=False
    )
    with server.database() as database, database.connect() as admin:
        _create(admin)
        admin.execute("CREATE ROLE capture LOGIN SUPERUSER")
        owners = [
            sql.SQL("ROLE capture"),
            sql.SQL("DATABASE {}").format(sql.Identifier(database.name)),
        ]
        for name, value in HOSTILE.items():
            # As Postgres itself would list several names: a quoted list would be one name.
            is_list = name in ("search_path", "DateStyle")
            setting = sql.SQL(value) if is_list else sql.Literal(value)
            for owner in owners:
                alter = sql.SQL("ALTER {} SET {} TO {}")
                admin.execute(alter.format(owner, sql.Identifier(name), setting))
        monkeypatch.setenv("PGTZ", "America/Lima")
        monkeypatch.setenv("PGDATESTYLE", "SQL")
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
        monkeypatch.setenv("PGOPTIONS", "-c bytea_output=escape -c IntervalStyle=sql_standard")
        yield database, make_conninfo(database.dsn, user="capture", client_encoding="LATIN1")
        admin.execute("DROP OWNED BY capture")


def _create(admin: psycopg.Connection) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(kind), sql.SQL(kind)) for kind in VALUES
    )
    admin.execute(sql.SQL("CREATE TABLE item ({})").format(columns))
    admin.execute("CREATE PUBLICATION item FOR TABLE item")
    admin.execute("SELECT pg_create_logical_replication_slot('item', 'pgoutput')")
    values = sql.SQL(", ").join(
        sql.SQL("{}::{}").format(sql.Literal(given), sql.SQL(kind))
        for kind, (given, _) in VALUES.items()
    )
    admin.execute(sql.SQL("INSERT INTO item VALUES ({})").format(values))


def test_f068_stream_and_copy_write_values_alike_whatever_is_set(
    hostile: tuple[Database, str],
) -> None:
    _, dsn = hostile
    expected = [text.encode() for _, text in VALUES.values()]
    with connect(dsn) as ours:
        (line,) = copied(ours, sql.SQL("public.item"))
        assert line == expected
    assert _streamed(dsn) == expected
    # The same role, unpinned: the settings do reach a session.
    with psycopg.connect(dsn) as bare:
        (line,) = copied(bare, sql.SQL("public.item"))
        assert sum(a != b for a, b in zip(line, expected, strict=True)) >= 10


def _streamed(dsn: str) -> list[bytes]:
    """The values of the one row, through the connection that capture uses."""
    connection = ReplicationConnection(dsn)
    try:
        connection.start("item", ["item"], Lsn(0))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            connection.wire.receive(1 << 20)
            messages = connection.wire.take()
            for message in map(messages.message, range(len(messages))):
                if message[:1] == b"w" and message[25:26] == b"I":
                    return _cells(message[25:])
    finally:
        connection.close()
    raise AssertionError("the row did not come")


def _cells(frame: bytes) -> list[bytes]:
    cells, at = [], 8
    for _ in VALUES:
        assert frame[at : at + 1] == b"t"
        size = int.from_bytes(frame[at + 1 : at + 5], "big")
        cells.append(frame[at + 5 : at + 5 + size])
        at += 5 + size
    return cells
