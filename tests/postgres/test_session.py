"""Sessions: settings pinned, secrets kept, every refusal in one line."""

from __future__ import annotations

import pickle
import socket
import threading
import traceback
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from tailrace.errors import ConfigError, SourceError, TailraceError
from tailrace.postgres.session import (
    PINNED,
    Connection,
    connect,
    connect_error,
    conninfo,
    pin,
    redact_dsn,
    source_error,
    startup_options,
)
from tests.server import Database, ServerFactory

SECRET = "s3cr3t"


def _normalised(conn: Connection) -> dict[str, str]:
    """The pinned values as the server prints them."""
    with conn.transaction(force_rollback=True):
        query = "SELECT set_config(%s, %s, true)"
        rows = {item[0]: conn.execute(query, item).fetchone() for item in PINNED.items()}
    return {name: row[0] for name, row in rows.items() if row}


def _set_everything_otherwise(admin: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TimeZone": "Europe/Berlin",
        "DateStyle": "German",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "-5",
        "search_path": "public",
        "row_security": "on",
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "synchronous_commit": "off",
        "statement_timeout": "1ms",
    }.items():
        query = sql.SQL("ALTER ROLE capture SET {} TO {}")
        admin.execute(query.format(sql.Identifier(name), sql.Literal(value)))
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGDATESTYLE", "SQL")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")


def test_f068_pins_win_over_role_and_environment(
    admin: Connection, capture_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _normalised(admin)
    _set_everything_otherwise(admin, monkeypatch)
    with connect(make_conninfo(capture_dsn, client_encoding="LATIN1")) as conn:
        for name, value in expected.items():
            row = conn.execute("SELECT current_setting(%s)", (name,)).fetchone()
            assert row == (value,), name


def test_f068_replication_session_has_the_same_pins(
    admin: Connection, capture_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _normalised(admin)
    _set_everything_otherwise(admin, monkeypatch)
    pgconn = pq.PGconn.connect(conninfo(capture_dsn, replication=True).encode())
    try:
        pin(pgconn)
        for name, value in expected.items():
            statement = sql.SQL("SHOW {}").format(sql.Identifier(name))
            result = pgconn.exec_(statement.as_bytes())
            assert result.get_value(0, 0) == value.encode(), name
    finally:
        pgconn.finish()


def test_options_of_the_dsn_are_kept_and_own_settings_win(source: Database) -> None:
    dsn = make_conninfo(source.dsn, options="-c work_mem=7MB -c statement_timeout=1ms")
    with connect(dsn, settings={"statement_timeout": "5s"}) as conn:
        query = "SELECT current_setting('work_mem'), current_setting('statement_timeout')"
        assert conn.execute(query).fetchone() == ("7MB", "5s")


def test_application_name_is_ours_whatever_the_dsn_says(source: Database) -> None:
    with connect(make_conninfo(source.dsn, application_name="mine")) as conn:
        assert conn.execute("SHOW application_name").fetchone() == ("tailrace",)


@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_f107_startup_options_carry_any_value(database: Database, value: str) -> None:
    with connect(database.dsn, settings={"tailrace.probe": value, "work_mem": "3MB"}) as conn:
        query = "SELECT current_setting('tailrace.probe'), current_setting('work_mem')"
        assert conn.execute(query).fetchone() == (value, "3MB")


def test_f107_startup_options_refuse_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match="not the name of a setting"):
        startup_options({"work_mem=1 -c x": "1"})


@pytest.mark.parametrize(
    ("changed", "words", "retry"),
    [
        ({"host": "127.0.0.1", "port": "1"}, "nothing listens at 127.0.0.1:1", True),
        ({"host": "/nonexistent"}, "nothing listens at /nonexistent", True),
        ({"host": "nowhere.invalid"}, "host nowhere.invalid is unknown", True),
        ({"dbname": "nonesuch"}, "database nonesuch does not exist", False),
        ({"user": "nonesuch"}, "role nonesuch does not exist", False),
        ({"user": "nologin"}, "does not let role nologin in", False),
        ({"user": "limited"}, "all connections of", True),
        ({"sslmode": "require", "host": "127.0.0.1"}, "do not agree on TLS", False),
        ({"options": "-c nonesuch=1"}, 'unrecognized configuration parameter "nonesuch"', False),
    ],
)
def test_a_refused_connection_is_one_line_with_a_hint(
    source: Database, admin: Connection, changed: dict[str, str], words: str, retry: bool
) -> None:
    admin.execute("CREATE ROLE nologin NOLOGIN")
    admin.execute("CREATE ROLE limited LOGIN CONNECTION LIMIT 0")
    with pytest.raises(SourceError) as caught:
        connect(make_conninfo(source.tcp_dsn, **{"password": SECRET, **changed}))
    assert words in str(caught.value)
    assert caught.value.retry is retry
    _assert_presentable(caught.value)


@pytest.mark.parametrize("sslmode", ["prefer", "disable"])
def test_a_server_of_another_kind_is_told(sslmode: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        address = {"host": "127.0.0.1", "port": server.getsockname()[1], "sslmode": sslmode}
        with pytest.raises(SourceError, match="is not postgres") as caught:
            connect(make_conninfo("", password=SECRET, **address))
        answering.join()
    _assert_presentable(caught.value)


def _assert_presentable(error: TailraceError) -> None:
    message = str(error)
    assert "\n" not in message and message[:1] == message[:1].lower()
    assert error.hint
    assert SECRET not in "".join(traceback.format_exception(error)) + error.hint
    assert str(pickle.loads(pickle.dumps(error))) == message


def test_password_and_pg_hba_are_told_apart(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    with server.connect() as admin:
        admin.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        admin.execute("CREATE ROLE barred LOGIN")
        row = admin.execute("SHOW hba_file").fetchone()
        assert row
        rules = "host all locked all scram-sha-256\nhost all barred all reject\n"
        hba = Path(row[0])
        hba.write_text(rules + hba.read_text())
        admin.execute("SELECT pg_reload_conf()")
    for user, password, words in (
        ("locked", SECRET, "postgres refused the password of role locked"),
        ("locked", "", "postgres refused the password of role locked"),
        ("barred", "", "does not let role barred in"),
    ):
        with pytest.raises(SourceError) as caught:
            connect(make_conninfo(server.tcp_dsn, user=user, password=password))
        assert words in str(caught.value)
        assert not caught.value.retry
        _assert_presentable(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        f"{SECRET}",
        f"host=db password='{SECRET}",
        f"postgresql://ann:{SECRET}@[db/shop",
        f"postgresql://ann:x@{SECRET}@db/shop",
        f"postgresql://ann:x@{SECRET}:y@db/shop",
        f"nonesuch={SECRET}",
    ],
)
def test_f112_an_unreadable_dsn_is_not_repeated(dsn: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(dsn)
    _assert_presentable(caught.value)
    assert SECRET not in redact_dsn(dsn)


@given(password=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=4))
def test_f112_redacted_dsn_never_holds_the_password(password: str) -> None:
    dsn = make_conninfo("", host="db", user="ann", password=f"<{password}>", dbname="shop")
    shown = redact_dsn(dsn)
    assert f"<{password}>" not in shown
    assert "host=db" in shown and "dbname=shop" in shown


@pytest.mark.parametrize(
    ("text", "words", "retry"),
    [
        ("FATAL:  the database system is starting up", "is starting up", True),
        ("FATAL:  the database system is not yet accepting connections", "starting up", True),
        ("FATAL:  sorry, too many clients already", "all connections of db:5432", True),
        (
            "FATAL:  number of requested standby connections exceeds max_wal_senders",
            "all wal senders of db:5432",
            True,
        ),
        ("connection timeout expired", "no answer from db:5432", True),
        ("FATAL:  unsupported startup parameter: options", "a connection pooler", False),
        ("FATAL:  Passwort-Authentifizierung fehlgeschlagen", "cannot connect to db:5432: ", False),
    ],
)
def test_connecting_is_classified_by_what_libpq_said(text: str, words: str, retry: bool) -> None:
    error = connect_error(f"connection failed: {text}\nmore", f"host=db password={SECRET}")
    assert words in str(error)
    assert error.retry is retry
    _assert_presentable(error)


def test_errors_of_a_session_are_classified_by_sqlstate(admin: Connection) -> None:
    with pytest.raises(psycopg.Error) as undefined:
        admin.execute("SELECT * FROM public.nonesuch")
    error = source_error(undefined.value)
    assert str(error) == 'relation "public.nonesuch" does not exist (42P01)'
    assert not error.retry
    with pytest.raises(psycopg.Error) as ended:
        admin.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert source_error(ended.value).retry
    with pytest.raises(psycopg.Error) as closed:
        admin.execute("SELECT 1")
    assert source_error(closed.value).retry
