"""Can a slot that was just made decode what was open while it was made?

Making a slot goes through phases, each of which waits for the transactions that run at its
beginning. Postgres misses changes of the catalog that are made in the first phase by a transaction
that is committed in the second: one that begins after it is decoded without them, and a table that
was truncated or rewritten cannot be found ("could not map filenumber … to relation OID", seen on
18.4). Such a slot fails for good at that transaction. It does so with all that begin until somebody
changes the catalog, which lets Postgres put its view of it together anew. So we change it, and then
decode once every transaction that was open at that moment has ended; later ones are not concerned.
"""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.postgres.quote import identifier, statement
from tailrace.postgres.session import Connection

# Anything that a catalog holds would do; of the publication it must not be what tells that somebody
# has altered it.
_CHANGE: Final = "COMMENT ON PUBLICATION {} IS 'what Tailrace captures'"

# The end of a snapshot would not do: transactions that are open may lie beyond it.
_NEWEST: Final = "SELECT pg_current_xact_id()::text::bigint"
_IS_PAST: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= %s"

# Nothing is published yet, so nothing is sent; but everything is decoded.
_DECODE: Final = """
SELECT count(*)
  FROM pg_logical_slot_peek_binary_changes(%s, pg_current_wal_lsn(), NULL,
                                           'proto_version', '1', 'publication_names', %s)
"""


def open_until(conn: Connection, publication: str) -> int:
    """A transaction id beyond all that are open now, a new one; whoever begins later is decoded
    with all of the catalog.
    """
    conn.execute(statement(_CHANGE, identifier(publication)))
    row = conn.execute(_NEWEST).fetchone()
    assert row is not None
    return int(row[0])


def have_ended(conn: Connection, until: int) -> bool:
    """Whether all transactions with an id below this one have ended."""
    return conn.execute(_IS_PAST, (until,)).fetchone() == (True,)


def can_decode(conn: Connection, slot: str, publication: str) -> bool:
    """Whether the slot decodes all that has been committed since; it does not move."""
    try:
        conn.execute(_DECODE, (slot, publication))
    except psycopg.errors.InternalError_:
        return False
    return True
