"""A snapshot of the database that is exact in commit order, held open for readers.

Making a logical slot exports a snapshot that shows precisely the transactions that end at or before
the slot's consistent point; a plain `pg_export_snapshot` does not, since a commit record may come
before its visibility. The slot is temporary and lives for milliseconds: a session of ours imports
its snapshot, exports it again and holds it, so that no WAL is kept back.

One thing is left to wait for. Between the flush of a commit record and the update of the commit log
a transaction counts as committed for the slot and as aborted for who reads its rows, and such a
reader would mark them dead for ever, in the table itself. So nobody reads anything under the
snapshot before no transaction that it shows is still running.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.model import Lsn
from tailrace.postgres import sqlstate
from tailrace.postgres.blockers import listed, writers
from tailrace.postgres.session import Connection, connect, conninfo
from tailrace.postgres.sqlstate import connect_error, source_error

IDLE_TIMEOUT_S: Final = 120
"""A holder that is not pinged for so long is ended by the server: its host is gone, or it hangs,
and vacuum must not wait for it for ever.
"""

_SETTLE_POLL_S: Final = 0.01
_TRANSACTION_TIMEOUT_VERSION_MIN: Final = 170000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`name` is what a session imports, `position` the server's own WAL position of which it is.
    `shown` is the snapshot itself, as pg_snapshot writes it.
    """

    name: str
    position: Lsn
    taken_ts_us: int
    shown: str


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for the open transactions of others: each try so long, all tries together so
    long. `say` gets a line that names them; `go_on` is called between tries and may raise.
    """

    try_ms: int
    all_s: float
    say: Callable[[str], None]
    go_on: Callable[[], None]


class SnapshotHolder:
    """`with SnapshotHolder(dsn) as holder: holder.hold(patience) …`; not thread-safe.

    `session` is inside the transaction that holds the snapshot; what it reads of the catalog is as
    of the snapshot. With `slot` the slot that is made has this name, and stays.
    """

    def __init__(self, dsn: str, *, application_name: str, slot: str | None = None) -> None:
        self._dsn = dsn
        self._slot = slot
        settings = {
            "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT_S}s",
            "statement_timeout": "0",
            # These must be the server's: libpq's own keepalives protect the client only.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        self.session = connect(dsn, application_name=application_name, settings=settings)
        self._watcher: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()
        if self._watcher is not None:
            self._watcher.close()

    def hold(self, patience: Patience) -> Snapshot:
        """Take a snapshot and hold it until the session ends or `release`.

        Raises SourceError(retry=True) that names the transactions in the way when patience is over.
        """
        deadline = time.monotonic() + patience.all_s
        try:
            while True:
                patience.go_on()
                try:
                    snapshot = self._try_to_hold(patience, deadline)
                    break
                except psycopg.Error as error:
                    self._refuse(error, patience, deadline)
        except psycopg.Error as error:
            raise source_error(error) from error
        return snapshot

    def release(self) -> None:
        """End the transaction that holds the snapshot."""
        self.session.execute("ROLLBACK")

    def show(self, application_name: str) -> None:
        """What pg_stat_activity says about the holder; a sign of life as well. Raises SourceError
        if the session, and so the snapshot, is lost.
        """
        query = sql.SQL("SET application_name TO {}").format(sql.Literal(application_name))
        try:
            self.session.execute(query)
        except psycopg.Error as error:
            raise source_error(error) from error

    def xmin_age(self) -> int:
        """How many transactions have begun since the oldest one that vacuum must keep rows for, on
        behalf of this snapshot.
        """
        query = "SELECT coalesce(age(backend_xmin), 0) FROM pg_stat_activity WHERE pid = %s"
        try:
            row = self._other().execute(query, (self.session.info.backend_pid,)).fetchone()
        except psycopg.Error as error:
            raise source_error(error) from error
        if row is None:
            raise SourceError("the session that holds the snapshot has ended", retry=True)
        return int(row[0])

    def _try_to_hold(self, patience: Patience, deadline: float) -> Snapshot:
        target = conninfo(
            self._dsn, settings={"lock_timeout": str(patience.try_ms)}, replication=True
        )
        try:
            exporter = psycopg.connect(target, autocommit=True)
        except psycopg.Error as error:
            raise connect_error(str(error), target) from error
        with exporter:
            # A name of its own for each try: the slot of an earlier one lingers for a moment.
            name = self._slot or f"tailrace_base_{secrets.token_hex(8)}"
            create = "CREATE_REPLICATION_SLOT {} {} LOGICAL pgoutput EXPORT_SNAPSHOT"
            kind = sql.SQL("" if self._slot else "TEMPORARY")
            row = exporter.execute(sql.SQL(create).format(sql.Identifier(name), kind)).fetchone()
            assert row is not None
            _, position, exported, _ = row
            failpoint("base.after_slot")
            snapshot = self._import(Lsn.parse(position), exported)
        failpoint("base.after_import")
        self._settle(snapshot.shown, patience, deadline)
        return snapshot

    def _import(self, position: Lsn, exported: str) -> Snapshot:
        session = self.session
        session.execute("ROLLBACK")
        if session.info.server_version >= _TRANSACTION_TIMEOUT_VERSION_MIN:
            session.execute("SET transaction_timeout TO 0")
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        session.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))
        row = session.execute(_EXPORT).fetchone()
        assert row is not None
        name, shown, taken_ts_us = row
        return Snapshot(name, position, taken_ts_us, shown)

    def _settle(self, shown: str, patience: Patience, deadline: float) -> None:
        """Wait until no transaction that the snapshot shows as committed is still running."""
        while True:
            row = self._other().execute(_UNSETTLED, {"shown": shown}).fetchone()
            assert row is not None
            if row[0] == 0:
                return
            patience.go_on()
            if time.monotonic() >= deadline:
                raise SourceError(
                    f"{row[0]} transactions are committed but do not come to their end", retry=True
                )
            time.sleep(_SETTLE_POLL_S)

    def _refuse(self, error: psycopg.Error, patience: Patience, deadline: float) -> None:
        """Whether to try again; raises what cannot be waited for."""
        match error.sqlstate:
            case sqlstate.LOCK_NOT_AVAILABLE | sqlstate.QUERY_CANCELED:
                line = f"a snapshot waits for open transactions: {listed(writers(self._other()))}"
                if time.monotonic() >= deadline:
                    hint = "end them, prepared ones with COMMIT PREPARED or ROLLBACK PREPARED"
                    raise SourceError(line, hint=hint, retry=True) from error
                patience.say(line)
            case sqlstate.SERIALIZATION_FAILURE if time.monotonic() < deadline:
                # "initial slot snapshot too large": aborted savepoints of others count.
                pass
            case sqlstate.LIMIT_EXCEEDED:
                raise SourceError(
                    "a snapshot needs a replication slot for a moment, and all are in use",
                    hint="raise max_replication_slots and restart, or drop one nobody needs",
                ) from error
            case _:
                raise error

    def _other(self) -> Connection:
        if self._watcher is None or self._watcher.closed:
            self._watcher = connect(self._dsn)
        return self._watcher


# The snapshot of a slot may end before it begins ("12:11:", if all between were rolled back), which
# Postgres takes for "12:12:" but does not read back.
_EXPORT: Final = """
SELECT pg_export_snapshot(),
       CASE WHEN pg_snapshot_xmax(held) < pg_snapshot_xmin(held)
            THEN format('%1$s:%1$s:', pg_snapshot_xmin(held)) ELSE held::text END,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
  FROM pg_current_snapshot() AS held
"""

# pg_snapshot_xip of a later snapshot is not enough: a transaction may be at or above its xmax.
_UNSETTLED: Final = """
SELECT count(*)
  FROM generate_series(pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
                       pg_snapshot_xmax(%(shown)s::pg_snapshot)::text::bigint - 1) AS x (id)
 WHERE pg_visible_in_snapshot(x.id::text::xid8, %(shown)s::pg_snapshot)
   AND NOT pg_visible_in_snapshot(x.id::text::xid8, pg_current_snapshot())
"""


def import_snapshot(conn: Connection, name: str) -> None:
    """Begin a transaction that sees exactly what the snapshot of this name shows; raises
    psycopg.Error.
    """
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
    except psycopg.Error:
        with suppress(psycopg.Error):
            conn.execute("ROLLBACK")
        raise
