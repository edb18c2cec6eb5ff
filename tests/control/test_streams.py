"""Streams in SQL: a bad row is refused with a hint, a good one is told to whoever listens."""

from __future__ import annotations

import json
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tailrace.control import schema
from tailrace.control.streams import (
    STREAMS_CHANNEL,
    Definition,
    Origin,
    Status,
    declare,
    delete,
    read_streams,
    reporting,
    set_paused,
    withdraw,
)
from tailrace.postgres.session import Connection

SOURCE: Final = "tailrace_main"
LAKE: Final = {"type": "delta", "path": "/lake"}
HOOK: Final = {"type": "webhook", "url": "${HOOK_URL}"}
BAD: Final[list[tuple[dict[str, object], str, str]]] = [
    ({"name": "a b"}, "is not a stream's name", "a-z"),
    ({"name": "a@b"}, "is not a stream's name", "a-z"),
    ({"tables": []}, "names no table", "public.orders"),
    ({"tables": ["orders"]}, "schema.table", "public.orders"),
    ({"tables": [["public.orders"], ["public.items"]]}, "schema.table", "public.orders"),
    ({"columns": []}, "names no column", "NULL"),
    ({"key": []}, "names no column", "NULL"),
    ({"sink": Jsonb([])}, "no type", "delta"),
    ({"sink": Jsonb({"type": "fax"})}, "no sink of type 'fax'", "webhook"),
    ({"sink": Jsonb({"type": "webhook", "url": "http://pw"})}, "url is a secret", "NAME"),
    ({"sink": Jsonb({**HOOK, "secret": "pw"})}, "secret is a secret", "NAME"),
    ({"sink": Jsonb({**HOOK, "secret": "${S:-pw}"})}, "secret is a secret", "NAME"),
    ({"sink": Jsonb({**HOOK, "headers": {"a": "pw"}})}, "headers is a secret", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "postgresql://u:pw@h/db"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "host=h password=pw"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "postgresql://u:$pw@h/db"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "postgresql://u:${P}pw@h"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "postgresql://h/db?password=$pw"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "host=h password=$pw"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "postgres", "dsn": "password = ${P:-pw} host=h"})}, "dsn", "NAME"),
    ({"sink": Jsonb({"type": "kafka", "properties": {"a": "pw"}})}, "properties is a", "NAME"),
    ({"sink": Jsonb({**HOOK, "dead_letter_queue": {**HOOK, "secret": "pw"}})}, "queue.secret", "N"),
    ({"options": Jsonb(3)}, "not an object", "trigger_interval"),
    ({"replay_to_ts": "2026-01-01"}, "replay_from_ts is not", "both"),
    ({"replay_from_ts": "2026-01-02", "replay_to_ts": "2026-01-01"}, "before it begins", "later"),
    ({"replay_from_ts": "-infinity"}, "years 1 to 9999", "available_from_ts"),
    ({"replay_from_ts": "0044-03-15 BC"}, "years 1 to 9999", "available_from_ts"),
    ({"replay_from_ts": "2026-01-01", "replay_to_ts": "infinity"}, "years 1 to", "available_from"),
    ({"replay_from_ts": "2026-01-01", "replay_to_ts": "10000-01-01"}, "years", "available_from"),
    ({"origin": "file"}, "written by the pipeline", "paused"),
]


def _insert(conn: Connection, values: dict[str, object]) -> None:
    row: dict[str, object] = {"name": "lake", "sink": Jsonb(LAKE), **values}
    query = sql.SQL("INSERT INTO tailrace.streams ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() * len(row)),
    )
    conn.execute(query, list(row.values()))


def _update(conn: Connection, change: LiteralString) -> None:
    query = sql.SQL("UPDATE tailrace.streams SET {}").format(sql.SQL(change))
    conn.execute(query)


def test_a_bad_row_is_refused_with_a_hint_and_without_its_secret(controlled: Connection) -> None:
    for values, said, hint in BAD:
        with pytest.raises(psycopg.errors.CheckViolation) as raised:
            _insert(controlled, values)
        diagnosis = raised.value.diag
        assert said in str(diagnosis.message_primary), values
        assert hint in str(diagnosis.message_hint), values
        assert "pw" not in str(diagnosis.message_primary) + str(diagnosis.message_hint)
    copied = {**HOOK, "dead_letter_queue": HOOK}
    for sink in (LAKE, copied, {"type": "postgres", "dsn": "host=h user=u"}):
        _insert(controlled, {"name": str(sink["type"]), "sink": Jsonb(sink)})
    assert [row.name for row in read_streams(controlled, SOURCE)] == [
        "delta",
        "postgres",
        "webhook",
    ]


def test_what_the_pipeline_writes_is_its_own(controlled: Connection) -> None:
    _insert(controlled, {})
    for change in ("status = 'healthy'", "\"position\" = '0/1'", "change_count = 7", "node = 'n'"):
        with pytest.raises(psycopg.errors.CheckViolation, match="written by the pipeline"):
            _update(controlled, change)
    with pytest.raises(psycopg.errors.CheckViolation, match="cannot be renamed"):
        _update(controlled, "name = 'other'")
    with reporting(controlled):
        _update(controlled, "status = 'healthy', reason = NULL, change_count = 7")
    [row] = read_streams(controlled, SOURCE)
    assert (row.status, row.revision, row.state["change_count"]) == (Status.HEALTHY, 1, 7)


def test_every_wish_is_told_and_no_report_is(controlled: Connection, admin: Connection) -> None:
    admin.execute(sql.SQL("LISTEN {}").format(sql.Identifier(STREAMS_CHANNEL)))
    _insert(controlled, {})
    with reporting(controlled):
        _update(controlled, "status = 'healthy', reason = NULL")
    _update(controlled, "tables = '{public.orders}'")
    set_paused(controlled, SOURCE, "lake", paused=True)
    _update(controlled, "replay_from_ts = '2026-01-01'")
    assert delete(controlled, SOURCE, "lake")
    told = [json.loads(note.payload) for note in admin.notifies(timeout=120, stop_after=5)]
    assert [each["change"] for each in told] == ["insert", "update", "update", "replay", "delete"]
    assert {(each["source"], each["stream"]) for each in told} == {(SOURCE, "lake")}


def test_a_stream_is_paused_resumed_and_tried_again(controlled: Connection) -> None:
    _insert(controlled, {})
    set_paused(controlled, SOURCE, "lake", paused=True)
    [paused] = read_streams(controlled, SOURCE)
    assert (paused.paused, paused.status, paused.reason) == (True, Status.PAUSED, None)
    set_paused(controlled, SOURCE, "lake", paused=False)
    [resumed] = read_streams(controlled, SOURCE)
    assert resumed.reason == "no pipeline has taken it up yet"
    set_paused(controlled, SOURCE, "lake", paused=False)
    [again] = read_streams(controlled, SOURCE)
    assert paused.revision < resumed.revision < again.revision
    assert not set_paused(controlled, SOURCE, "other", paused=True)


def test_the_file_and_sql_do_not_change_each_others_streams(controlled: Connection) -> None:
    hidden = {"type": "webhook", "url": "${tailrace.yaml}"}
    with reporting(controlled):
        declare(controlled, SOURCE, "hook", Definition(("public.*",), hidden))
    changes: list[LiteralString] = ["tables = '{public.orders}'", "origin = 'sql'"]
    for change in changes:
        with pytest.raises(psycopg.errors.CheckViolation) as raised:
            _update(controlled, change)
        assert raised.value.diag.message_hint
    with pytest.raises(psycopg.errors.CheckViolation, match=r"declared in tailrace\.yaml"):
        delete(controlled, SOURCE, "hook")
    set_paused(controlled, SOURCE, "hook", paused=True)
    query = "UPDATE tailrace.streams SET origin = 'sql', sink = %s"
    controlled.execute(query, (Jsonb(HOOK),))
    with reporting(controlled):
        declare(controlled, SOURCE, "hook", Definition(("shop.*",), hidden))
        withdraw(controlled, SOURCE, ["hook"])
    [row] = read_streams(controlled, SOURCE)
    assert (row.origin, row.definition.tables, row.paused) == (Origin.SQL, ("public.*",), True)


def test_a_stream_belongs_to_the_only_source_unless_it_names_one(controlled: Connection) -> None:
    _insert(controlled, {"source": "tailrace_shop"})
    _insert(controlled, {"name": "second"})
    assert [row.name for row in read_streams(controlled, "tailrace_shop")] == ["lake", "second"]
    _insert(controlled, {"source": "tailrace_other"})
    with pytest.raises(psycopg.errors.CheckViolation, match="several sources"):
        _insert(controlled, {"name": "third"})


def test_a_role_that_may_write_the_table_needs_no_other_right(
    controlled: Connection, admin: Connection
) -> None:
    admin.execute("CREATE ROLE operator")
    admin.execute("GRANT USAGE ON SCHEMA tailrace TO operator")
    admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON tailrace.streams TO operator")
    admin.execute("SET ROLE operator")
    try:
        _insert(admin, {})
        _update(admin, "paused = true")
        assert delete(admin, SOURCE, "lake")
    finally:
        admin.execute("RESET ROLE")


@pytest.mark.parametrize(
    "dsn",
    [
        "${TARGET_URL}",
        "postgresql://u:${P}@h:5432/db",
        "postgresql://${U}:${P}@h/db?sslmode=require",
        "postgresql://u@h/db?password=${P}&sslmode=require",
        "postgresql://h:5432/db",
        "host=h password=${P} user=u",
        "host=h password = ${P}",
    ],
)
def test_a_password_may_be_the_name_of_a_variable(controlled: Connection, dsn: str) -> None:
    _insert(controlled, {"sink": Jsonb({"type": "postgres", "dsn": dsn})})
    [row] = read_streams(controlled, SOURCE)
    assert row.definition.sink["dsn"] == dsn


def test_a_stream_that_an_earlier_version_has_taken_can_be_paused_and_resumed(
    capture: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema._migrations()
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "_migrations", lambda: known[:9])
        schema.migrate(capture)
    capture.execute(
        "INSERT INTO tailrace.streams (source, name, tables, sink) VALUES (%s, 'a', %s, %s)",
        (SOURCE, ["public.t"], Jsonb({"type": "postgres", "dsn": "postgresql://u:$pw@h/db"})),
    )
    schema.migrate(capture)
    for paused in (True, False):
        assert set_paused(capture, SOURCE, "a", paused=paused)
        assert [row.paused for row in read_streams(capture, SOURCE)] == [paused]
    with pytest.raises(psycopg.errors.CheckViolation, match="dsn is a secret"):
        capture.execute("UPDATE tailrace.streams SET replay_from_ts = now() - interval '1 h'")
