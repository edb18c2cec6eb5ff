"""Compares the tables of a stream with their source at one position, while everything flows.

The source is read under a snapshot that shows exactly what ends at or before P. The lake is read at
the version that reaches furthest without passing P, and what the log has between the two is laid
over it. A table that is rewritten or truncated meanwhile is seen wrongly under a snapshot without
an error: then its files are others than before, and it is compared again under a new one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

import psycopg

from tailrace.capture.lent_snapshot import snapshot_holder
from tailrace.errors import ConfigError, LogError, SourceError, TailraceError
from tailrace.log import Reader
from tailrace.log.bases import newest_bases
from tailrace.log.gone import gone_tables
from tailrace.model import Lsn, Offset
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.snapshot import Patience, SnapshotHolder
from tailrace.postgres.table_shape import TableShape, read_shape
from tailrace.sinks.place import escape
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import Store
from tailrace.streams.taken import Taken, TakenTables, matching
from tailrace.verify.changes import changes_between
from tailrace.verify.compare import Comparison, differing_rows
from tailrace.verify.delta import DeltaRows
from tailrace.verify.lake import LakeRows
from tailrace.verify.overlay import rows_at
from tailrace.verify.repair import Repairs
from tailrace.verify.result import StreamResult, TableResult
from tailrace.verify.source import SourceTable, find_table
from tailrace.verify.source_rows import passes, repair_input
from tailrace.verify.standing import read_standing, wait_for_log, wait_for_stream
from tailrace.verify.table import Pair
from tailrace.verify.version import version_at

_APPLICATION_NAME: Final = "tailrace_verify"
_TRIES_MAX: Final = 3
_REPAIR_ROWS: Final = 50_000
_PATIENCE_TRY_MS: Final = 10_000
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A stream to verify: its lake, and which of its tables; no names mean all. `patterns` say what
    it is to have: a table that it lacks is told, too.
    """

    stream: str
    lake: str
    tables: Sequence[str] = ()
    selection: Selection = EVERYTHING
    patterns: Sequence[str] = ()


class Watcher(Protocol):
    """Who is told how it goes. May raise to end it."""

    def say(self, text: str) -> None:
        """What is being waited for or done."""
        ...

    def begin(self, table: str, row_count: int) -> None:
        """A table begins, with about so many rows on both sides together."""
        ...

    def advance(self, row_count: int) -> None:
        """So many more rows have been read, on either side; from any thread."""
        ...


class Verification:
    """One run over the tables of a stream."""

    def __init__(
        self,
        dsn: str,
        store: Store,
        subject: Subject,
        watcher: Watcher,
        repairs: Repairs | None = None,
    ) -> None:
        self._dsn = dsn
        self._store = store
        self._reader = Reader(store)
        self._subject = subject
        self._watcher = watcher
        self._repairs = repairs

    def run(self) -> StreamResult:
        """Compare; raises TailraceError if nothing can be compared."""
        try:
            return self._run()
        except psycopg.Error as error:
            raise source_error(error) from error

    def _run(self) -> StreamResult:
        began = time.time()
        if self._repairs is not None:
            self._repairs.finish_left_over()
        results: dict[str, TableResult] = {}
        repaired: Counter[str] = Counter()
        left = self._asked()
        position = Lsn(0)
        for _ in range(_TRIES_MAX):
            with self._at_snapshot() as at:
                position = at.position
                for table in left:
                    name = table.qualified
                    results[name], count = at.compare(table)
                    repaired[name] += count
            # What was repaired is compared again: it is equal when it has been seen to be.
            left = tuple(
                table
                for table in left
                if results[table.qualified].is_doubtful or repaired[table.qualified]
            )
            left = tuple(table for table in left if not results[table.qualified].equal)
            if not left:
                break
        if not self._subject.tables:
            results |= self._lacking(results, position)
        ordered = tuple(
            replace(results[name], repaired_rows=repaired[name]) for name in sorted(results)
        )
        return StreamResult(self._subject.stream, position, began, time.time() - began, ordered)

    @contextmanager
    def _at_snapshot(self) -> Iterator[AtSnapshot]:
        """A snapshot of the source, when log and stream have come as far as it."""
        watcher, store, subject = self._watcher, self._store, self._subject
        with snapshot_holder(self._dsn, store, application_name=_APPLICATION_NAME) as holder:
            watcher.say("taking a snapshot of the source")
            patience = Patience(_PATIENCE_TRY_MS, _PATIENCE_S, watcher.say, lambda: None)
            snapshot = holder.hold(patience)

            def keep() -> None:
                holder.show(_APPLICATION_NAME)

            era = self._reader.tip().position.era
            position = Lsn.of(snapshot.position.wal, era=era)
            watcher.say(f"waiting for the log to come to {position}")
            wait_for_log(self._reader, position, keep)
            watcher.say(f"waiting for stream {subject.stream} to come to {position}")
            at = Offset.whole(position)
            wait_for_stream(store, self._reader, subject.stream, at, keep)
            # The lake's side may take longer than the source's, which then is idle.
            holder.session.execute("SET idle_in_transaction_session_timeout TO '1h'")
            yield AtSnapshot(
                self._dsn, store, self._reader, subject, watcher, holder, position, self._repairs
            )

    def _asked(self) -> TakenTables:
        taken = read_standing(self._store, self._subject.stream).tables
        if not taken:
            raise LogError(
                f"stream {self._subject.stream} has not taken up a table yet",
                hint="`tailrace status` names those that wait for their base",
                retry=True,
            )
        if not self._subject.tables:
            # The target of a table that is not captured any more stays as it was.
            gone = gone_tables(self._store)
            return tuple(table for table in taken if table.oid not in gone)
        found: list[Taken] = []
        for text in self._subject.tables:
            pattern = TablePattern.parse(text)
            meant = [table for table in taken if pattern.matches(table.schema, table.name)]
            if not meant:
                names = ", ".join(table.qualified for table in taken) or "none yet"
                raise ConfigError(
                    f"stream {self._subject.stream} delivers no table {text}", hint=names
                )
            found += [table for table in meant if table not in found]
        return tuple(found)

    def _lacking(self, had: Container[str], position: Lsn) -> dict[str, TableResult]:
        """The tables that are captured, and that the stream is to have by now and does not."""
        gone, bases = gone_tables(self._store), newest_bases(self._store)
        captured = tuple(
            Taken.from_base(base)
            for oid, base in bases.items()
            if oid not in gone and base.generation <= position
        )
        return {
            table.qualified: _not_compared(table.qualified, "the stream does not have it")
            for table in matching(captured, self._subject.patterns)
            if table.qualified not in had
        }


@dataclass(frozen=True, slots=True)
class AtSnapshot:
    """Everything that is known while a snapshot is held."""

    dsn: str
    store: Store
    reader: Reader
    subject: Subject
    watcher: Watcher
    holder: SnapshotHolder
    position: Lsn
    repairs: Repairs | None = None

    @property
    def session(self) -> Connection:
        """Sees the source as of the snapshot."""
        return self.holder.session

    def compare(self, table: Taken) -> tuple[TableResult, int]:
        """Compare one table, and repair it if that is asked for: what was found, and how many rows
        were repaired. What keeps it from being compared is its result's problem.
        """
        try:
            return self._compare(table)
        except TailraceError as error:
            problem = f"{error} ({error.hint})" if error.hint else str(error)
            return _not_compared(table.qualified, problem, is_doubtful=error.retry), 0

    def _compare(self, table: Taken) -> tuple[TableResult, int]:
        name = table.qualified
        shape = read_shape(self.session, table.oid)
        source = find_table(self.session, name)
        if shape is None or source is None or source.oid != table.oid:
            return _not_compared(name, "the source has no such table"), 0
        rows = self._lake_rows(table, shape)
        if isinstance(rows, str):
            return _not_compared(name, rows), 0
        self.watcher.begin(name, source.row_estimate + rows.count())
        pair = Pair.of(
            self.session,
            source,
            rows,
            chosen=self.subject.selection.columns,
            own_key=self.subject.selection.key,
            where=self.subject.selection.where,
            on_rows=self.watcher.advance,
        )
        found = pair.compare()
        result = pair.tell(name, found)
        if not self._is_unmoved(shape):
            problem = "was rewritten or truncated while it was compared"
            return _not_compared(name, problem, is_doubtful=True), 0
        if result.equal or self.repairs is None:
            return result, 0
        return result, self._repair(table, source, shape, pair, found)

    def _repair(
        self,
        table: Taken,
        source: SourceTable,
        shape: TableShape,
        pair: Pair,
        found: Comparison,
    ) -> int:
        assert self.repairs is not None
        at = Offset.whole(self.position)
        count = 0
        every = differing_rows(pair.source, pair.lake, found, pair.shape)
        while some := list(islice(every, _REPAIR_ROWS)):
            self.watcher.say(f"repairing {len(some)} rows of {table.qualified}")
            for keys in passes(some):
                rows = repair_input(
                    self.session,
                    source,
                    pair.shape,
                    shape.relation,
                    keys.texts,
                    position=self.position,
                    selection=self.subject.selection,
                    with_rows=keys.with_rows,
                )
                if not self._is_unmoved(shape):
                    raise SourceError(
                        f"{table.qualified} was rewritten while it was repaired", retry=True
                    )
                self.repairs.give(table, rows, at)
            count += len(some)
        return count

    def _lake_rows(self, table: Taken, shape: TableShape) -> LakeRows | str:
        """The lake's rows as of the snapshot, or why there are none."""
        subject = self.subject
        standing = read_standing(self.store, subject.stream)
        held = next((each.position for each in standing.tables if each.oid == table.oid), None)
        uri = f"{subject.lake.rstrip('/')}/{escape(table.schema)}/{escape(table.name)}"
        rows = DeltaRows.open(uri)
        if rows is None or held is None:
            return f"no lake table at {uri}"
        at = Offset.whole(self.position)
        version = version_at(rows.target.table, subject.stream, standing, held, at=at)
        if version is None:
            return "the lake table was taken up later than the snapshot"
        if version.number != rows.target.table.version():
            rows = DeltaRows.open(uri, version.number)
            assert rows is not None, f"{uri} was there a moment ago"
        changes = changes_between(
            self.reader, version.position, at, oid=table.oid, selection=subject.selection
        )
        return rows_at(rows, subject.selection.narrow(shape.relation), changes)

    def _is_unmoved(self, shape: TableShape) -> bool:
        with connect(self.dsn) as now:
            found = read_shape(now, shape.relation.oid)
        return found is not None and found.leaves == shape.leaves


def _not_compared(name: str, problem: str, *, is_doubtful: bool = False) -> TableResult:
    return TableResult(name, 0, 0, False, problem=problem, is_doubtful=is_doubtful)
