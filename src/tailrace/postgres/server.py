"""Facts about the server, the database and the role of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg.rows import class_row

from tailrace.model import Lsn
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class Server:
    """What one query tells; counts leave out what belongs to the asked-for slot."""

    system_id: int
    timeline: int
    version_num: int
    in_recovery: bool
    database: str
    encoding: str
    wal_level: str
    max_replication_slots: int
    other_slot_count: int
    max_wal_senders: int
    other_sender_count: int
    max_slot_wal_keep_mb: int
    idle_slot_timeout: str
    synchronous_standby_names: str
    role: str
    is_superuser: bool
    may_replicate: bool
    may_create: bool
    is_managed: bool
    is_proxied: bool

    @property
    def version(self) -> str:
        """As people write it: 16.9."""
        return f"{self.version_num // 10000}.{self.version_num % 10000}"


# A managed service gives its customers no REPLICATION attribute but a role that stands for it. A
# backend pid other than the one of the handshake means that a pooler or proxy answered the
# handshake. Settings that this version does not have read as empty.
_SERVER: Final = """
SELECT (SELECT system_identifier FROM pg_control_system()) AS system_id,
       CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int
       END AS timeline,
       current_setting('server_version_num')::int AS version_num,
       pg_is_in_recovery() AS in_recovery,
       current_database()::text AS database,
       pg_encoding_to_char(d.encoding)::text AS encoding,
       current_setting('wal_level') AS wal_level,
       current_setting('max_replication_slots')::int AS max_replication_slots,
       (SELECT count(*) FROM pg_replication_slots
         WHERE slot_name IS DISTINCT FROM %(slot)s) AS other_slot_count,
       current_setting('max_wal_senders')::int AS max_wal_senders,
       (SELECT count(*) FROM pg_stat_replication AS sender
         WHERE NOT EXISTS (SELECT FROM pg_replication_slots AS slot
                            WHERE slot.slot_name = %(slot)s AND slot.active_pid = sender.pid)
       ) AS other_sender_count,
       (SELECT setting::int FROM pg_settings
         WHERE name = 'max_slot_wal_keep_size') AS max_slot_wal_keep_mb,
       coalesce(current_setting('idle_replication_slot_timeout', true), '0') AS idle_slot_timeout,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       r.rolname::text AS role,
       r.rolsuper AS is_superuser,
       r.rolsuper OR r.rolreplication OR coalesce(pg_has_role(managed.oid, 'USAGE'), false)
           AS may_replicate,
       has_database_privilege(d.oid, 'CREATE') AS may_create,
       managed.oid IS NOT NULL AS is_managed,
       pg_backend_pid() <> %(handshake_pid)s AS is_proxied
  FROM pg_database AS d
  JOIN pg_roles AS r ON r.rolname = current_user
  LEFT JOIN pg_roles AS managed ON managed.rolname = 'rds_replication'
 WHERE d.datname = current_database()
"""


def read_server(conn: Connection, *, slot: str | None = None) -> Server:
    """The facts as of now; `slot` names the slot whose use is not counted as another's."""
    with conn.cursor(row_factory=class_row(Server)) as cursor:
        cursor.execute(_SERVER, {"slot": slot, "handshake_pid": conn.info.backend_pid})
        server = cursor.fetchone()
    assert server is not None, "a session has a role and a database"
    return server


_POSITION: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()::text
            ELSE pg_current_wal_lsn()::text END
"""


def wal_position(conn: Connection) -> Lsn:
    """How far the server has written its log; how far it has replayed it, if it is a standby."""
    row = conn.execute(_POSITION).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def insert_position(conn: Connection) -> Lsn:
    """A position that nothing that has ended by now stands after, durable or not."""
    row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])
