"""Changes into tables of another Postgres database, each applied exactly once.

Invariant: the transaction that changes a table's rows also moves the stream's watermark for it, and
holds the lock on that from its beginning. A sequence that is recorded, or older than the recorded
one, is not written again. If the answer to a COMMIT is lost, the record tells next time whether it
happened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import TargetLost
from tailrace.failpoint import failpoint
from tailrace.model import Relation
from tailrace.postgres.session import Connection
from tailrace.sinks.columns import Mode
from tailrace.sinks.postgres.forms import AppendForm, Form, UpsertForm
from tailrace.sinks.postgres.options import PostgresOptions
from tailrace.sinks.postgres.sessions import Sessions
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.watermark import Watermark, committed, set_up
from tailrace.sinks.side_by_side import write_tables
from tailrace.sinks.sink import Batch, Holds, Load

_TABLES_AT_ONCE: Final = 4

logger = logging.getLogger(__name__)


class PostgresSink:
    """The tables of one database; a session for each table that is written at a time."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._form: Form = AppendForm() if options.mode is Mode.APPEND else UpsertForm()
        self._sessions = Sessions(options.dsn)
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="tailrace-postgres")

    @property
    def holds(self) -> Holds:
        """By its mode."""
        return Holds.CHANGES if self._options.mode is Mode.APPEND else Holds.ROWS

    def prepare(self, relation: Relation) -> None:
        """Make an empty table, or see that the one that is there can take the relation's rows."""
        with self._sessions.transaction() as conn:
            target = self._open_or_make(conn, relation)
            target.layout.fitted(self._form.layout(relation), relation)

    def write(self, batch: Batch) -> None:
        """Write the tables side by side; those that can be written are, also if another one
        fails.
        """
        write_tables(self._pool, batch, self._write_table)

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Let the table hold these rows, all at once; a table of changes has them behind the
        others.
        """
        with self._sessions.transaction() as conn:
            target = self._open_or_make(conn, load.relation)
            watermark = Watermark.hold(conn, target.oid, load.stream)
            if watermark.covers(load.sequence):
                return
            self._form.load(conn, target, load, rows)
            failpoint("postgres.after_rows")
            watermark.move(conn, load.sequence, load.position)
            failpoint("postgres.before_commit")
        failpoint("postgres.after_commit")

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What the database itself has recorded."""
        names = {self._options.place(relation): relation.qualified for relation in relations}
        with self._sessions.transaction() as conn:
            found = committed(conn, stream, names)
        return {names[place]: sequence for place, sequence in found.items()}

    def close(self) -> None:
        """End the threads and the sessions."""
        self._pool.shutdown()
        self._sessions.close()

    def _write_table(self, batch: Batch, changes: TableChanges) -> None:
        relation = changes.relation
        with self._sessions.transaction() as conn:
            target = self._open_or_make(conn, relation)
            watermark = Watermark.hold(conn, target.oid, batch.stream)
            if watermark.recorded is None and relation.qualified in batch.known_tables:
                raise self._gone(batch, relation)
            if watermark.covers(batch.sequence):
                logger.info(
                    "batch already applied table=%s sequence=%d", relation.qualified, batch.sequence
                )
                return
            layout = target.layout.fitted(self._form.layout(relation), relation)
            target = target.evolve(conn, layout)
            failpoint("postgres.after_evolve")
            self._form.write(conn, target, changes)
            failpoint("postgres.after_rows")
            watermark.move(conn, batch.sequence, batch.upto)
            failpoint("postgres.before_commit")
        failpoint("postgres.after_commit")

    def _open_or_make(self, conn: Connection, relation: Relation) -> Target:
        set_up(conn)
        layout = self._form.layout(relation)
        place = self._options.place(relation)
        return Target.open(conn, place, relation) or Target.make(conn, place, relation, layout)

    def _gone(self, batch: Batch, relation: Relation) -> TargetLost:
        name = ".".join(self._options.place(relation))
        return TargetLost(
            f"table {name} at {self._sessions.place} is gone or was made anew, but rows were"
            f" delivered to it by stream {batch.stream}",
            hint=f"`tailrace snapshot {relation.qualified}` delivers it anew",
        )
