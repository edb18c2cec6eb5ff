"""Does a session still lead? Asked inside a transaction that must not be made by one who does not.

A leader that was stopped and wakes up late has lost its session, and the server knows. So whatever
changes how a table is captured asks the server, in the same transaction, whether the session that
won the lock still holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tailrace.errors import NotLeading
from tailrace.postgres.replication import lock_key
from tailrace.postgres.session import Connection

# A lock by one 64-bit key shows as its halves (pg_locks, "advisory lock").
_HOLDER: Final = """
SELECT pid FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND objsubid = 1
   AND (classid::bigint << 32) | objid::bigint = %s
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def leader_pid(conn: Connection, slot: str) -> int | None:
    """The backend that holds the lock of this slot's leader; None if nobody leads."""
    row = conn.execute(_HOLDER, (lock_key(slot),)).fetchone()
    return None if row is None else int(row[0])


def must_lead(conn: Connection, slot: str, pid: int) -> None:
    """Raise NotLeading unless the backend `pid` holds the lock of this slot's leader."""
    if leader_pid(conn, slot) != pid:
        raise NotLeading("another process leads by now")


@contextmanager
def as_leader(conn: Connection, slot: str, pid: int) -> Iterator[None]:
    """A transaction that comes to nothing unless the backend `pid` leads. Asked first, so that
    nothing is done in vain; and last, under the locks that the block has taken: whoever leads next
    waits for them, and sees what was done.
    """
    with conn.transaction():
        must_lead(conn, slot, pid)
        yield
        must_lead(conn, slot, pid)
