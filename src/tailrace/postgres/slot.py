"""The replication slot: its state, its making and its end.

Whether a slot is lost is decided by pg_replication_slots, never by the text of an error: texts
differ between versions and between SQL and START_REPLICATION. A slot's name counts for the whole
cluster, so one of another database is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg

from tailrace.errors import ConfigError, SlotLost, SourceError
from tailrace.model import Lsn
from tailrace.postgres import sqlstate
from tailrace.postgres.blockers import listed, writers
from tailrace.postgres.quote import identifier, shown
from tailrace.postgres.session import APPLICATION_NAME, Connection
from tailrace.postgres.sqlstate import source_error

PLUGIN: Final = "pgoutput"
TERMINATE_WAIT_MS: Final = 5_000
_FAILOVER_VERSION_MIN: Final = 170000


@dataclass(frozen=True, slots=True)
class SlotState:
    """One line of pg_replication_slots; what the server's version lacks is None or False."""

    name: str
    database: str | None
    plugin: str | None
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    restart_lsn: Lsn | None
    wal_status: str | None
    safe_wal_bytes: int | None
    invalidation: str | None
    is_temporary: bool
    is_two_phase: bool
    is_failover: bool

    @property
    def is_active(self) -> bool:
        """True while a session streams from it."""
        return self.active_pid is not None

    @property
    def is_lost(self) -> bool:
        """True if the server no longer keeps what the slot still has to send."""
        return self.invalidation is not None

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Read the line as JSON: versions 14 to 18 differ in columns, not in their meaning."""
        return cls(
            name=row["slot_name"],
            database=row["database"],
            plugin=row["plugin"],
            active_pid=row["active_pid"],
            confirmed_flush_lsn=_lsn(row["confirmed_flush_lsn"]),
            restart_lsn=_lsn(row["restart_lsn"]),
            wal_status=row["wal_status"],
            safe_wal_bytes=row["safe_wal_size"],
            invalidation=_invalidation(row),
            is_temporary=row["temporary"],
            is_two_phase=bool(row["two_phase"]),
            is_failover=bool(row.get("failover")),
        )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def _invalidation(row: dict[str, Any]) -> str | None:
    if reason := row.get("invalidation_reason"):  # told from version 17 on
        return str(reason)
    return "wal_removed" if row["wal_status"] == "lost" else None


def read_slot(conn: Connection, name: str) -> SlotState | None:
    """The slot as it is now, or None if there is none of this name."""
    query = "SELECT to_jsonb(s) FROM pg_replication_slots AS s WHERE slot_name = %s"
    row = conn.execute(query, (name,)).fetchone()
    return None if row is None else SlotState.from_row(row[0])


def create_slot(
    conn: Connection, name: str, *, lock_timeout_ms: int, failover: bool = False
) -> Lsn:
    """Make the slot and give the position it starts from.

    Waits for every open transaction, each at most `lock_timeout_ms`; then raises
    SourceError(retry=True) that names them. A slot whose making fails is dropped by the server.
    `conn` must not have a transaction open.
    """
    if failover and conn.info.server_version < _FAILOVER_VERSION_MIN:
        raise ConfigError("failover slots need postgres 17 or later", hint="leave failover off")
    try:
        with conn.transaction():
            conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(lock_timeout_ms),))
            row = conn.execute(_create_query(failover), {"name": name, "plugin": PLUGIN}).fetchone()
    except psycopg.Error as exc:
        raise _creation_error(conn, name, exc) from exc
    assert row is not None
    return Lsn.parse(row[0])


def _create_query(failover: bool) -> str:
    if failover:
        return """SELECT lsn::text FROM pg_create_logical_replication_slot(
                      %(name)s, %(plugin)s, twophase => false, failover => true)"""
    return """SELECT lsn::text FROM pg_create_logical_replication_slot(
                      %(name)s, %(plugin)s, twophase => false)"""


def _creation_error(conn: Connection, name: str, exc: psycopg.Error) -> SourceError:
    match exc.sqlstate:
        case sqlstate.LOCK_NOT_AVAILABLE | sqlstate.QUERY_CANCELED:
            return SourceError(
                f"slot {name} waits for open transactions: {listed(writers(conn))}",
                hint="end them, prepared ones with COMMIT PREPARED or ROLLBACK PREPARED",
                retry=True,
            )
        case sqlstate.LIMIT_EXCEEDED:
            return SourceError(
                f"slot {name} cannot be made: all replication slots are in use",
                hint="raise max_replication_slots and restart, or drop a slot that nobody needs",
            )
        case sqlstate.INSUFFICIENT_PRIVILEGE:
            role = shown("ALTER ROLE {} REPLICATION", identifier(conn.info.user))
            return SourceError(f"role {conn.info.user} may not make a slot", hint=role)
        case sqlstate.DUPLICATE_OBJECT:
            return SourceError(f"slot {name} exists already")
        case sqlstate.WRONG_STATE if (level := _wal_level(conn)) != "logical":
            return SourceError(
                f"slot {name} cannot be made: wal_level is {level}",
                hint="ALTER SYSTEM SET wal_level = 'logical', then restart postgres",
            )
    return source_error(exc)


def _wal_level(conn: Connection) -> str:
    row = conn.execute("SELECT current_setting('wal_level')").fetchone()
    assert row is not None
    return str(row[0])


# In one statement, so that the pid is still the walsender's when it is ended.
_TERMINATE: Final = """
SELECT pg_terminate_backend(a.pid, %(wait_ms)s::bigint)
  FROM pg_replication_slots AS s JOIN pg_stat_activity AS a ON a.pid = s.active_pid
 WHERE s.slot_name = %(name)s AND a.application_name = %(application_name)s
"""


def drop_slot(
    conn: Connection,
    name: str,
    *,
    application_name: str = APPLICATION_NAME,
    ends_sender: bool = True,
) -> None:
    """Drop the slot if there is one.

    A walsender that still streams from it is ended if `application_name` shows that it is ours,
    since the caller holds the leadership and ours is a left-over; unless the caller knows of none,
    and `ends_sender` is false. Any other is left alone, and SourceError(retry=True) says who it is.
    """
    try:
        state = read_slot(conn, name)
        if state is None:
            return
        if state.database != conn.info.dbname:
            raise SourceError(
                f"slot {name} belongs to database {state.database}",
                hint="choose another source.name",
            )
        if state.is_active and ends_sender:
            args = {
                "name": name,
                "wait_ms": TERMINATE_WAIT_MS,
                "application_name": application_name,
            }
            conn.execute(_TERMINATE, args)
        conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectInUse as exc:
        raise _in_use(name, read_slot(conn, name)) from exc
    except psycopg.Error as exc:
        raise source_error(exc) from exc


def classify(exc: psycopg.Error, name: str, state: SlotState | None) -> SourceError:
    """What an error while streaming from slot `name` means, given the slot as it was read after it.

    A slot that is gone or invalidated is lost whatever the error was: a server that invalidates a
    slot ends its walsender as an operator would (57P01), and one that is dropped may be found
    missing only when reconnecting.
    """
    if state is None:
        return SlotLost(f"slot {name} does not exist", hint=_LOST_HINT)
    if state.is_lost:
        return SlotLost(f"slot {name} was invalidated: {state.invalidation}", hint=_LOST_HINT)
    match exc.sqlstate:
        case sqlstate.OBJECT_IN_USE:
            return _in_use(name, state)
        case sqlstate.UNDEFINED_OBJECT:
            return SourceError(
                f"slot {name} is there but its publication is not",
                hint="someone dropped it: changes made since are not in the stream",
            )
    return source_error(exc)


_LOST_HINT: Final = "changes that the log does not hold yet can no longer be read from the wal"


def _in_use(name: str, state: SlotState | None) -> SourceError:
    holder = f"pid {state.active_pid}" if state and state.is_active else "another session"
    return SourceError(
        f"slot {name} is in use by {holder}",
        hint="it is free when that session ends, at the latest after wal_sender_timeout",
        retry=True,
    )
