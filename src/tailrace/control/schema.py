"""Makes the schemas `tailrace` and `tailrace_changes`, brings them up to date, and removes them.

Each file of `migrations` is one version and is applied once, in order. All that are missing are
applied in one transaction under an advisory lock: of two nodes that start at once one does the work
and the other finds it done, and a node that dies leaves nothing half made. A schema of a newer
Tailrace is refused, not guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Final

import psycopg

from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.postgres.buffer import read_captures
from tailrace.postgres.quote import identifier, shown, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error

CONTROL: Final = "tailrace"
CHANGES: Final = "tailrace_changes"

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('tailrace.control', 0))"
_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS tailrace.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def migrate(conn: Connection) -> None:
    """Bring both schemas up to date, and let DDL be watched where the role may.

    Raises SourceError: the role may not create a schema, or the schema is of a newer Tailrace.
    """
    try:
        with conn.transaction():
            conn.execute(_LOCK)
            _make_schemas(conn)
            _apply(conn)
        watch_ddl(conn)
    except psycopg.errors.InsufficientPrivilege as error:
        names = (identifier(conn.info.dbname), identifier(conn.info.user))
        raise SourceError(
            f"role {conn.info.user} may not make or alter schema {CONTROL}",
            hint=shown("GRANT CREATE ON DATABASE {} TO {}", *names),
        ) from error
    except psycopg.Error as error:
        raise source_error(error) from error


def installed_version(conn: Connection) -> int:
    """Which version of the schemas is there; 0 for none."""
    row = conn.execute("SELECT to_regclass('tailrace.migrations') IS NOT NULL").fetchone()
    if row != (True,):
        return 0
    row = conn.execute("SELECT coalesce(max(version), 0) FROM tailrace.migrations").fetchone()
    assert row is not None
    return int(row[0])


def has_schema(conn: Connection) -> bool:
    """Whether anything of ours is there, be it what is left of it."""
    query = "SELECT to_regnamespace(%s) IS NOT NULL OR to_regnamespace(%s) IS NOT NULL"
    return conn.execute(query, (CONTROL, CHANGES)).fetchone() == (True,)


def latest_version() -> int:
    """The version that `migrate` brings about."""
    return _migrations()[-1][0]


def remove(conn: Connection, *, unless: Callable[[], bool] = lambda: False) -> None:
    """Drop both schemas with all that is in them, and what watches DDL; `unless` is asked in the
    same transaction. The triggers on tables must be gone: dropping their functions would lock the
    tables of the application.
    """
    try:
        with conn.transaction():
            conn.execute(_LOCK)
            if unless():
                return
            for name in _EVENT_TRIGGERS:
                conn.execute(statement("DROP EVENT TRIGGER IF EXISTS {}", identifier(name)))
            failpoint("control.before_drop")
            for schema in (CHANGES, CONTROL):
                conn.execute(statement("DROP SCHEMA IF EXISTS {} CASCADE", identifier(schema)))
    except psycopg.Error as error:
        raise source_error(error) from error


def _make_schemas(conn: Connection) -> None:
    # CREATE … IF NOT EXISTS asks for the right to create before it looks.
    for schema in (CONTROL, CHANGES):
        row = conn.execute("SELECT to_regnamespace(%s) IS NULL", (schema,)).fetchone()
        if row == (True,):
            conn.execute(statement("CREATE SCHEMA {}", identifier(schema)))
    conn.execute(_VERSIONS)


def _apply(conn: Connection) -> None:
    installed = installed_version(conn)
    if installed > latest_version():
        raise SourceError(
            f"schema {CONTROL} is of version {installed}, this Tailrace knows {latest_version()}",
            hint="use the newer Tailrace that made it",
        )
    if not installed:
        _clear_left_over(conn)
    for version, name, text in _migrations():
        if version > installed:
            conn.execute(text)
            conn.execute(
                "INSERT INTO tailrace.migrations (version, name) VALUES (%s, %s)", (version, name)
            )
            failpoint("control.after_migration")
    if installed < latest_version():
        conn.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tailrace FROM PUBLIC")


# Triggers that are left may go on calling them: the same are made again before this is committed.
_DROP_LEFT_OVER: Final = """
DROP FUNCTION IF EXISTS tailrace_changes.table_form(oid), tailrace_changes.signature(oid),
    tailrace_changes.fits(regclass, text), tailrace_changes.row_text(record),
    tailrace_changes.row_form(oid, oid, record)
"""


def _clear_left_over(conn: Connection) -> None:
    """Somebody has dropped schema `tailrace` and not the other. Buffers that are left cannot be
    read: in which shape a row was written was said there, and numbers of shapes would be given
    twice. So those must go first, and it is not for us to drop them unasked.
    """
    if read_captures(conn):
        raise SourceError(
            f"schema {CONTROL} was dropped, and {CHANGES} with triggers and buffers was not",
            hint="run `tailrace teardown`, which removes them, and begin a new log",
        )
    conn.execute(_DROP_LEFT_OVER)


def _migrations() -> list[tuple[int, str, bytes]]:
    files = resources.files(__package__) / "migrations"
    found = [file for file in files.iterdir() if file.name.endswith(".sql")]
    named = sorted((file.name.removesuffix(".sql"), file.read_bytes()) for file in found)
    return [(int(name[:4]), name[5:], text) for name, text in named]


_EVENT_TRIGGERS: Final = {
    "tailrace_on_alter": """
CREATE EVENT TRIGGER tailrace_on_alter ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION tailrace.on_ddl()""",
    "tailrace_on_drop": """
CREATE EVENT TRIGGER tailrace_on_drop ON sql_drop EXECUTE FUNCTION tailrace.on_ddl()""",
}

# Whoever owns the function decides what runs in the sessions of all who alter tables.
_IS_OURS: Final = """
SELECT p.proowner = r.oid FROM pg_proc AS p, pg_roles AS r
 WHERE p.oid = 'tailrace.on_ddl()'::regprocedure AND r.rolname = current_user
"""


def watch_ddl(conn: Connection) -> bool:
    """Let capture follow each ALTER TABLE within its own transaction, where the role may make event
    triggers; else the functions of triggers look for themselves. Whether it is so.
    """
    if conn.execute(_IS_OURS).fetchone() == (True,):
        for name, query in _EVENT_TRIGGERS.items():
            _make_event_trigger(conn, name, query.encode())
    return conn.execute("SELECT tailrace.watches_ddl()").fetchone() == (True,)


def _make_event_trigger(conn: Connection, name: str, query: bytes) -> None:
    found = conn.execute("SELECT FROM pg_event_trigger WHERE evtname = %s", (name,)).fetchone()
    if found is not None:
        return
    try:
        with conn.transaction():
            conn.execute(query)
            alter = "ALTER EVENT TRIGGER {} ENABLE ALWAYS"
            conn.execute(statement(alter, identifier(name)))
    except psycopg.errors.InsufficientPrivilege:
        return
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        # Another node was quicker: the one it says if it was so before, the other if just now.
        return
