"""Tables in trigger mode, and what reads their buffers."""

from __future__ import annotations

import psycopg
from psycopg import sql

from tailrace.capture.buffers.shapes import BufferShapes
from tailrace.capture.buffers.translate import Translator
from tailrace.control.schema import migrate
from tailrace.postgres.buffer import buffer, buffer_name
from tailrace.postgres.catalog import TableInfo, read_tables
from tailrace.postgres.triggers import (
    drop_buffer,
    drop_triggers,
    install_triggers,
    sync_capture,
)

LOCK_TIMEOUT_MS = 10_000


def oid_of(conn: psycopg.Connection, table: str) -> int:
    """The oid of a table, by its qualified name."""
    row = conn.execute("SELECT %s::regclass::oid::bigint", [table]).fetchone()
    assert row is not None
    return int(row[0])


def control(conn: psycopg.Connection) -> list[int]:
    """The oids of all tables of the control schema."""
    query = "SELECT oid::bigint FROM pg_class WHERE relnamespace = 'tailrace'::regnamespace"
    return [oid for (oid,) in conn.execute(query)]


def buffer_of(conn: psycopg.Connection, table: str) -> str:
    """The qualified name of its buffer."""
    return f"tailrace_changes.{buffer_name(oid_of(conn, table))}"


def buffer_bytes(conn: psycopg.Connection, table: str) -> int:
    """How large the buffer is."""
    query = "SELECT pg_relation_size(%s::regclass)"
    row = conn.execute(query, [buffer_of(conn, table)]).fetchone()
    assert row is not None
    return int(row[0])


def buffered_count(conn: psycopg.Connection, table: str) -> int:
    """How many rows are in the buffer."""
    query = sql.SQL("SELECT count(*) FROM {}").format(buffer(oid_of(conn, table)))
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def track(conn: psycopg.Connection, table: str, *, watches_ddl: bool = True) -> None:
    """Put a table in trigger mode."""
    if watches_ddl:
        migrate(conn)
    install_triggers(conn, _info(conn, table), lock_timeout_ms=LOCK_TIMEOUT_MS)


def let_go(conn: psycopg.Connection, table: str) -> None:
    """End its trigger mode; its buffer goes as well."""
    info = _info(conn, table)
    drop_triggers(conn, info, lock_timeout_ms=LOCK_TIMEOUT_MS)
    drop_buffer(conn, info.oid, lock_timeout_ms=LOCK_TIMEOUT_MS)


def reshape(conn: psycopg.Connection, table: str) -> None:
    """Let its buffer follow its columns."""
    sync_capture(conn, _info(conn, table), lock_timeout_ms=LOCK_TIMEOUT_MS)


def translator(conn: psycopg.Connection) -> Translator:
    """One that knows the shapes of this database; a row that cannot be read fails the test."""

    def want_base(oid: int, reason: str) -> None:
        raise AssertionError(f"table {oid} needs a base: {reason}")

    return Translator(BufferShapes(conn.info.dsn), want_base=want_base)


def _info(conn: psycopg.Connection, table: str) -> TableInfo:
    return read_tables(conn, [oid_of(conn, table)])[0]
