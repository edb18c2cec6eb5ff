"""The barrier: the one moment at which a table goes over from its triggers to the WAL, or back.

One short transaction locks out the table's writers, switches the one capture on and the other off,
and says so in the stream. Who wrote the table before has ended, and the trigger has recorded it,
so it stands before the barrier; who writes it later comes from the other side alone. Nothing is
compared and nothing is thrown away: no change can be there twice.

READ COMMITTED, because a snapshot from before the lock would not show what was committed while we
waited for it. Triggers are disabled, not dropped: dropping needs a lock that kills whoever has read
the table and is about to write it. One table at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg

from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.model import Lsn
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.leading import must_lead
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import read_slot
from tailrace.postgres.table_lock import (
    lock_out_writers,
    must_be_unchanged,
    must_end_soon,
    refusal,
)

MESSAGE: Final = "tailrace.handover"


@dataclass(frozen=True, slots=True)
class Barrier:
    """Who may pass it: `leader_pid` is the backend that holds the lock of the slot's leader. With
    `wait_ms` the table is waited for so long, if that has any prospect of success.
    """

    conn: Connection
    slot: str
    leader_pid: int
    lock_timeout_ms: int
    wait_ms: int | None = None

    @contextmanager
    def locked(self, table: TableInfo) -> Iterator[None]:
        """A transaction in which the table's writers wait; raises SourceError(retry=True) if the
        lock is not won in time, SchemaError if the table is not what it was judged by, and whatever
        the block raises: then nothing has happened.
        """
        conn = self.conn
        if self.wait_ms is not None:
            must_end_soon(conn, table, self.wait_ms)
        try:
            with conn.transaction():
                lock_out_writers(conn, table, self.lock_timeout_ms, wait_ms=self.wait_ms)
                # First, so that nothing is done in vain; and last, as in `as_leader`.
                must_lead(conn, self.slot, self.leader_pid)
                # By name all follows: another table may have taken it since this one was judged.
                must_be_unchanged(conn, table)
                yield
                failpoint("handover.before_commit")
                must_lead(conn, self.slot, self.leader_pid)
        except psycopg.Error as error:
            raise refusal(conn, table, error) from error

    def publish(self, publication: str, table: TableInfo) -> None:
        """From its commit on the slot streams the table itself."""
        slot = read_slot(self.conn, self.slot)
        if slot is None or slot.is_lost:
            raise SourceError(f"slot {self.slot} is gone", retry=True)
        # ONLY: the children of an inheritance tree are tables of their own.
        _alter(self.conn, "ALTER PUBLICATION {} ADD TABLE ONLY {}", publication, table)

    def withdraw(self, publication: str, table: TableInfo) -> None:
        """From its commit on the slot streams the table no more."""
        _alter(self.conn, "ALTER PUBLICATION {} DROP TABLE ONLY {}", publication, table)

    def tell(self, table: TableInfo, mode: str) -> Lsn:
        """Put the barrier's message into the stream; its position."""
        text = json.dumps({"table": table.qualified, "oid": table.oid, "mode": mode})
        query = "SELECT pg_logical_emit_message(true, %s, %s)::text"
        row = self.conn.execute(query, (MESSAGE, text)).fetchone()
        assert row is not None
        return Lsn.parse(row[0])


def _alter(conn: Connection, template: str, publication: str, table: TableInfo) -> None:
    names = (identifier(publication), qualified(table.schema, table.name))
    conn.execute(statement(template, *names))
