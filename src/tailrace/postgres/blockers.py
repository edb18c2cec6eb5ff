"""Who stands in the way: the transactions that a wait of ours ran into.

Looked up after the wait has failed, on the same session, so a blocker may just have ended. A role
without pg_read_all_stats sees the pid and the application of others, not their age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg.rows import class_row

from tailrace.postgres.session import Connection

SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Blocker:
    """A running transaction (`pid`) or a prepared one (`gid`); `still_s` is for how long it has
    been at its present statement, or at none.
    """

    pid: int | None
    gid: str | None
    application: str
    age_s: int | None
    still_s: float | None = None

    def __str__(self) -> str:
        name = f"pid {self.pid}" if self.gid is None else f"prepared transaction {self.gid!r}"
        facts = [self.application] if self.application else []
        if self.age_s is not None:
            facts.append(f"{self.age_s} s")
        return f"{name} ({', '.join(facts)})" if facts else name


# Making a slot waits for every transaction of the cluster that has an xid, prepared ones included.
_WRITERS: Final = """
SELECT pid, NULL AS gid, application_name AS application,
       extract(epoch FROM clock_timestamp() - xact_start)::int AS age_s
  FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL
SELECT NULL, gid, '', extract(epoch FROM clock_timestamp() - prepared)::int FROM pg_prepared_xacts
ORDER BY age_s DESC NULLS LAST, pid
"""

# The modes are those that conflict with SHARE ROW EXCLUSIVE. A prepared transaction holds its locks
# without a pid; the lock on its own xid, under the same virtual transaction, tells which one it is.
_LOCKERS: Final = """
SELECT DISTINCT l.pid, x.gid, coalesce(a.application_name, '') AS application,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::int AS age_s,
       extract(epoch FROM statement_timestamp() - coalesce(a.state_change, x.prepared))::float8
           AS still_s
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
  LEFT JOIN pg_locks AS own
         ON l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
        AND own.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_prepared_xacts AS x ON x.transaction = own.transactionid
 WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.relation IN (SELECT %(oid)s::oid
                      UNION SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass))
   AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
                  'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
 ORDER BY age_s DESC NULLS LAST, l.pid
"""


def writers(conn: Connection) -> list[Blocker]:
    """The transactions that making a slot waits for, oldest first."""
    with conn.cursor(row_factory=class_row(Blocker)) as cursor:
        return cursor.execute(_WRITERS).fetchall()


def lockers(conn: Connection, table_oid: int) -> list[Blocker]:
    """The transactions that keep a table from being locked against writers, oldest first."""
    with conn.cursor(row_factory=class_row(Blocker)) as cursor:
        return cursor.execute(_LOCKERS, {"oid": table_oid}).fetchall()


def listed(blockers: list[Blocker]) -> str:
    """For a message: the first few, and how many more."""
    if not blockers:
        return "a transaction that has ended since"
    shown = ", ".join(str(blocker) for blocker in blockers[:SHOWN_MAX])
    more = len(blockers) - SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
