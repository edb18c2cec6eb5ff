"""Changes into tables of another Postgres database, each applied exactly once.

Invariant: the transaction that changes a table's rows also moves the stream's watermark for it, and
holds the lock on that from its beginning. A sequence that is recorded, or older than the recorded
one, is not written again. If the answer to a COMMIT is lost, the record tells next time whether it
happened.

A row that the target refuses becomes a dead letter, durable before that transaction commits, and
parks its key; other rows flow. Only a batch of which a row is refused, or waits, is taken apart, in
a transaction of its own, after the other tables of the batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import SinkError, TargetLost
from tailrace.failpoint import failpoint
from tailrace.model import Relation
from tailrace.postgres.session import Connection
from tailrace.sinks.columns import Mode
from tailrace.sinks.letters.ticker import Ticker
from tailrace.sinks.letters.turns import Turns
from tailrace.sinks.postgres.apart import referring
from tailrace.sinks.postgres.forms import AppendForm, Form, UpsertForm
from tailrace.sinks.postgres.options import PostgresOptions
from tailrace.sinks.postgres.parking import LeftOut, Parking
from tailrace.sinks.postgres.redriving import Redriving
from tailrace.sinks.postgres.refusals import is_by_other_tables, is_refusal
from tailrace.sinks.postgres.sessions import Sessions
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.watermark import Watermark, committed, occupied, set_up
from tailrace.sinks.side_by_side import write_tables
from tailrace.sinks.sink import Batch, Holds, Load, stream_of
from tailrace.storage import Store

REQUESTS_S: Final = 1.0
"""How often to look for what operators ask for about dead letters."""

_TABLES_AT_ONCE: Final = 4

logger = logging.getLogger(__name__)


class PostgresSink:
    """The tables of one database; a session for each table that is written at a time."""

    def __init__(
        self, options: PostgresOptions, *, store: Store | None = None, stream: str = ""
    ) -> None:
        """`store` is where dead letters of the stream are kept; without one, and in a replay, a row
        that the target refuses is an error.
        """
        self._options = options
        self._form: Form = AppendForm() if options.mode is Mode.APPEND else UpsertForm()
        self._sessions = Sessions(options.dsn, answer_s=options.answer_s)
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="tailrace-postgres")
        self._store = store
        self._stream = stream
        self._lock = Turns()
        self._stop = threading.Event()
        self._left_out: LeftOut | None = None
        self._parking: Parking | None = None
        self._ticker: Ticker | None = None
        if store is not None and stream and stream == stream_of(stream):
            self._parking = Parking(store, stream, options.letters)
            self._ticker = Ticker(self.serve_requests, stream, every_s=REQUESTS_S, stop=self._stop)

    def leave_out_undelivered(self) -> None:
        """Let a replay write nothing that waits among the dead letters of the stream itself: it was
        never delivered, and is going to be, in its order, by a redrive.
        """
        if self._store is not None:
            self._left_out = LeftOut(self._store, self._stream)

    @property
    def holds(self) -> Holds:
        """By its mode."""
        return self._options.mode.holds

    def prepare(self, relation: Relation) -> None:
        """Make an empty table, or see that the one that is there can take the relation's rows."""
        with self._sessions.transaction() as conn:
            target = self._open_or_make(conn, relation)
            target.layout.fitted(self._form.layout(relation), relation)

    def write(self, batch: Batch) -> None:
        """Write the tables side by side; those that can be written are, also if another one
        fails. Those of which a row waits, or is refused, come last: what such a row refers to in
        another table may have come by then.
        """
        with self._lock:
            aside = self._begin(batch.sequence)
            apart: list[TableChanges] = []

            def write(batch: Batch, changes: TableChanges) -> None:
                waits = aside is not None and aside.waits(changes.relation.qualified)
                if waits or not self._is_written(batch, changes):
                    apart.append(changes)

            write_tables(self._pool, batch, write)
            self._write_apart(batch, apart)

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Let the table hold these rows, all at once; a table of changes has them behind the
        others.
        """
        with self._lock:
            self._begin(load.sequence)
            parking = self._parking if self._form.can_part(load.relation) else None
            with self._sessions.transaction() as conn:
                target = self._open_or_make(conn, load.relation)
                watermark = Watermark.hold(conn, target.oid, load.stream)
                if watermark.covers(load.sequence):
                    return
                if self._parking is not None:
                    self._parking.outdo(load.relation.qualified, load.sequence)
                self._form.load(conn, target, load, rows, parking)
                failpoint("postgres.after_rows")
                self._look()
                watermark.move(conn, load.sequence, load.position)
                failpoint("postgres.before_commit")
            failpoint("postgres.after_commit")

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """What the database itself has recorded."""
        names = {self._options.place(relation): relation.qualified for relation in relations}
        with self._sessions.transaction() as conn:
            found = committed(conn, stream, names)
        return {names[place]: sequence for place, sequence in found.items()}

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """Those that the database has a record of."""
        names = {self._options.place(relation): relation.qualified for relation in relations}
        with self._sessions.transaction() as conn:
            return {names[place] for place in occupied(conn, names)}

    def close(self) -> None:
        """End the threads and the sessions."""
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
        self._pool.shutdown()
        self._sessions.close()

    def serve_requests(self) -> None:
        """Carry out what operators have asked for about dead letters, between batches."""
        parking = self._parking
        if parking is not None:
            redriving = Redriving(self._sessions, self._options, self._stream, parking.look)
            is_whole = self._options.mode is Mode.UPSERT
            parking.serve(redriving.send, self._lock, self._stop, is_whole=is_whole)

    def _begin(self, sequence: int) -> Parking | LeftOut | None:
        """What knows which rows wait, if anything does."""
        if self._parking is not None:
            self._parking.begin(sequence)
            return self._parking
        if self._left_out is not None:
            self._left_out.begin()
        return self._left_out

    def _look(self) -> None:
        """Whoever takes the stream over from now on finds every letter of this batch."""
        if self._parking is not None:
            self._parking.look()

    def _is_written(self, batch: Batch, changes: TableChanges) -> bool:
        """Write a table as it is; False if it is to be taken apart, because a row is refused."""
        try:
            with self._sessions.transaction() as conn:
                opened = self._open_for(conn, batch, changes)
                if opened is None:
                    return True
                target, watermark = opened
                self._form.write(conn, target, changes)
                failpoint("postgres.after_rows")
                watermark.move(conn, batch.sequence, batch.upto)
                failpoint("postgres.before_commit")
        except SinkError as error:
            can_part = self._parking is not None and self._form.can_part(changes.relation)
            if can_part and is_refusal(error.__cause__):
                return False
            raise
        failpoint("postgres.after_commit")
        return True

    def _write_apart(self, batch: Batch, tables: Sequence[TableChanges]) -> None:
        """Write tables but for the rows that wait or are refused. One of which a row is refused
        because of another table comes again behind the others; if none gets on, one that refers to
        none of them puts its rows aside.
        """
        while tables:
            later = self._left_over(batch, tables)
            if len(later) == len(tables):
                first = self._foremost(later)
                self._is_parted(batch, first, is_last=True)
                later = [changes for changes in later if changes is not first]
            tables = later

    def _left_over(self, batch: Batch, tables: Sequence[TableChanges]) -> list[TableChanges]:
        """Write tables apart; those that have to come again."""
        later: list[TableChanges] = []

        def write(batch: Batch, changes: TableChanges) -> None:
            if not self._is_parted(batch, changes, is_last=len(tables) == 1):
                later.append(changes)

        write_tables(self._pool, replace(batch, tables=tables), write)
        return later

    def _is_parted(self, batch: Batch, changes: TableChanges, *, is_last: bool) -> bool:
        """Write a table but for the rows that wait or are refused; False if other tables may be
        the reason, and are to be written first.
        """
        aside = self._parking or self._left_out
        assert aside is not None, "somebody knows what waits"
        try:
            with self._sessions.transaction() as conn:
                opened = self._open_for(conn, batch, changes)
                if opened is None:
                    return True
                target, watermark = opened
                sequence = batch.sequence
                self._form.write_apart(conn, target, changes, sequence, aside, is_last=is_last)
                failpoint("apart.after_letters")
                self._look()
                watermark.move(conn, sequence, batch.upto)
                failpoint("apart.before_commit")
        except SinkError as error:
            if is_last or not is_by_other_tables(error.__cause__):
                raise
            return False
        failpoint("apart.after_commit")
        return True

    def _foremost(self, tables: Sequence[TableChanges]) -> TableChanges:
        """One whose rows refer to none of the others, if there is one."""
        places = [self._options.place(changes.relation) for changes in tables]
        with self._sessions.transaction() as conn:
            found = referring(conn, places)
        free = [changes for changes, at in zip(tables, places, strict=True) if at not in found]
        return (free or tables)[0]

    def _open_for(
        self, conn: Connection, batch: Batch, changes: TableChanges
    ) -> tuple[Target, Watermark] | None:
        """The target with all columns of the changes, and its watermark, locked; None if the batch
        is recorded.
        """
        relation = changes.relation
        target = self._open_or_make(conn, relation)
        watermark = Watermark.hold(conn, target.oid, batch.stream)
        if watermark.recorded is None and relation.qualified in batch.known_tables:
            raise self._gone(batch, relation)
        if watermark.covers(batch.sequence):
            logger.info(
                "batch already applied table=%s sequence=%d", relation.qualified, batch.sequence
            )
            return None
        layout = target.layout.fitted(self._form.layout(relation), relation)
        target = target.evolve(conn, layout)
        failpoint("postgres.after_evolve")
        return target, watermark

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
