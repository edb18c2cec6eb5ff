"""Takes bases: a snapshot for a group of tables, their rows in parallel, and each made complete.

For each group: hold a snapshot that is exact as of a position P; read every stretch under it; look
whether each table is still the one that the snapshot shows; put its base.json. A table that was
rewritten or altered meanwhile starts again with another snapshot. If this process dies anywhere,
what it has put is no base, and the table is simply taken again.

A table with rows is published while others write it, and of who has begun to write it before then
only the later rows are streamed. The snapshot waits for all who are open when it begins, and for
nobody else. So it begins when the table is seen to be captured; if that has changed when it is
there, the table starts again. What changes later leaves a mark after P, which asks for a new base.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg

from tailrace.bases.group import HOLDER_NAME, Group, Surroundings, TableResult
from tailrace.bases.progress import BaseProgress
from tailrace.bases.runner import Runner
from tailrace.bases.watching import Limits
from tailrace.capture.lent_snapshot import snapshot_holder
from tailrace.control.captured import Tenure, tenures
from tailrace.errors import ConfigError, SourceError, TailraceError
from tailrace.failpoint import failpoint
from tailrace.log import Reader, SourceIdentity, read_genesis
from tailrace.log.bases import delete_unfinished
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.replication import lock_key
from tailrace.postgres.server import read_server
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.snapshot import Patience
from tailrace.storage import Store

logger = logging.getLogger(__name__)

GROUP_BYTES_MAX: Final = 4 << 30
"""Tables of so many bytes share a snapshot; a larger one has its own."""

TRIES_MAX: Final = 5
LOCK_S: Final = 5.0
_LOCK_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """What taking bases is told. Holds the DSN: never shown."""

    dsn: str = field(repr=False)
    names: SourceNames
    limits: Limits = field(default_factory=Limits)


class BaseTaker:
    """Takes bases for one source. One thread at a time; across processes, one at a time as well."""

    def __init__(
        self,
        settings: BaseSettings,
        store: Store,
        runner: Runner,
        *,
        stop: threading.Event,
        show: Callable[[BaseProgress], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._runner = runner
        self._stop = stop
        self._show = show

    def take(
        self, oids: Sequence[int], *, still_wanted: Callable[[], Collection[int]] | None = None
    ) -> list[TableResult]:
        """A new base for each of these published tables. Raises TailraceError if none could be
        tried, or if told to stop; what concerns one table alone is in its result.

        `still_wanted` is asked once nobody else takes bases: those that others have just taken
        may be left out.
        """
        left, tries = list(dict.fromkeys(oids)), Counter[int]()
        results: list[TableResult] = []
        while left:
            try:
                group = self._take_group(left, still_wanted)
            except TailraceError as error:
                # There was no snapshot: the tables that it was for start again.
                tries[left[0]] += 1
                if self._stop.is_set() or not error.retry or tries[left[0]] >= TRIES_MAX:
                    raise
                logger.warning("base interrupted, starting again error=%s", error)
                continue
            final = [r for r in group if not self._starts_again(r, tries)]
            results += final
            left = [oid for oid in left if oid not in {result.oid for result in final}]
        return results

    def _starts_again(self, result: TableResult, tries: Counter[int]) -> bool:
        tries[result.oid] += 1
        if result.error is None or not result.error.retry or tries[result.oid] > TRIES_MAX:
            return False
        logger.warning("base starts again table=%s reason=%s", result.table, result.error)
        return True

    def _take_group(
        self, oids: Sequence[int], still_wanted: Callable[[], Collection[int]] | None
    ) -> list[TableResult]:
        settings, limits = self._settings, self._settings.limits
        with snapshot_holder(settings.dsn, self._store, application_name=HOLDER_NAME) as holder:
            try:
                self._be_alone(holder.session)
                source = self._source(holder.session)
                wanted = set(oids if still_wanted is None else still_wanted())
                if done := [TableResult(oid, str(oid)) for oid in oids if oid not in wanted]:
                    return done
                chosen = _group(holder.session, oids)
                before = tenures(holder.session, settings.names)
                patience = Patience(limits.try_ms, limits.wait_s, self._wait, self._go_on)
                snapshot = holder.hold(patience)
                failpoint("base.after_snapshot")
                crossed = self._crossed(chosen, before)
                chosen = {oid: chosen[oid] for oid in chosen if oid not in crossed}
                around = Surroundings(
                    dsn=settings.dsn,
                    store=self._store,
                    runner=self._runner,
                    source=source,
                    limits=limits,
                    show=self._show,
                    go_on=self._go_on,
                )
                results = self._read(Group(around, holder, snapshot), chosen) if chosen else []
                results += crossed.values()
                # While we are alone: another's unfinished parts are not ours to delete.
                delete_unfinished(self._store, [each.oid for each in results])
            except psycopg.Error as error:
                raise source_error(error) from error
        return results

    def _read(self, group: Group, chosen: Mapping[int, str]) -> list[TableResult]:
        """What keeps these tables from being read must not keep the others waiting."""
        try:
            return group.take(list(chosen))
        except TailraceError as error:
            if self._stop.is_set():
                raise
            return [TableResult(oid, name, error=error) for oid, name in chosen.items()]

    def _crossed(
        self, chosen: Mapping[int, str], before: Mapping[int, Tenure]
    ) -> dict[int, TableResult]:
        """The tables that have not been captured from before the snapshot until now."""
        with connect(self._settings.dsn) as conn:
            now = tenures(conn, self._settings.names)
            living = {table.oid for table in read_tables(conn, list(chosen))}
        crossed = {}
        for oid, name in chosen.items():
            if oid in living and (oid not in before or oid not in now or before[oid] != now[oid]):
                why = "was published anew while a snapshot was made"
                what = f"{name} {why if oid in now else 'is not captured'}"
                error = SourceError(what, retry=oid in now)
                crossed[oid] = TableResult(oid, name, error=error)
        return crossed

    def _be_alone(self, conn: Connection) -> None:
        """Two at once would read everything twice. A session of ours that has just been closed is
        there for a moment longer.
        """
        key = lock_key(f"{self._settings.names.slot} bases")
        deadline = time.monotonic() + LOCK_S
        while conn.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone() != (True,):
            self._go_on()
            if time.monotonic() >= deadline:
                raise SourceError(
                    "another process is taking bases of this source",
                    hint="`tailrace status` shows what it does; wait for its end",
                )
            time.sleep(_LOCK_POLL_S)

    def _source(self, conn: Connection) -> SourceIdentity:
        """What the log says of its source, which must be this server and database."""
        genesis = read_genesis(self._store)
        if genesis is None:
            raise SourceError(
                f"the log at {self._store.url} has not begun",
                hint="run `tailrace capture` first: it publishes the tables",
            )
        server, note = read_server(conn), genesis.note or {}
        found = (str(server.system_id), server.timeline, server.database)
        if found != (genesis.source.system_id, genesis.source.timeline, note.get("database")):
            raise ConfigError(
                f"the log at {self._store.url} belongs to another database",
                hint="correct source.dsn or log.url: each database needs a log of its own",
            )
        return Reader(self._store).tip().source

    def _wait(self, line: str) -> None:
        logger.warning("%s", line)
        self._show(BaseProgress(tables=(), waiting=line))

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise SourceError("told to stop", retry=True)


# The tree of a table that has no partitions is empty; a partitioned one has no size of its own.
_SIZE: Final = """
SELECT (coalesce(pg_table_size(%(oid)s::oid::regclass), 0)
        + coalesce(sum(pg_table_size(relid)), 0))::bigint
  FROM pg_partition_tree(%(oid)s::oid::regclass)
"""


def _group(conn: Connection, oids: Sequence[int]) -> dict[int, str]:
    """The first tables, as many as share a snapshot, by oid, with their names."""
    living = {table.oid: table.qualified for table in read_tables(conn, oids)}
    chosen: dict[int, str] = {}
    size = 0
    for oid in oids:
        row = conn.execute(_SIZE, {"oid": oid}).fetchone() if oid in living else (0,)
        assert row is not None
        size += int(row[0])
        if chosen and size > GROUP_BYTES_MAX:
            break
        chosen[oid] = living.get(oid, str(oid))
    return chosen
