"""Tables tidied in the background: small files merged, rows that are out of order sorted, files
that no recent version needs deleted.

Nothing waits for it. Delta lets only one of two commits through that touch the same files: if a
batch is faster, the tidying was for nothing and is tried again later; if the tidying is faster, the
batch is applied once more to the tidied table. Readers see the same rows before and after.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tailrace.errors import TailraceError
from tailrace.failpoint import failpoint
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.files import Files
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.sync import sync_from
from tailrace.sinks.delta.target import Target

_VACUUM_EVERY_S: Final = 86_400.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Table:
    """What is known of one table in this process."""

    looked_at: int
    vacuumed_at: float = -math.inf
    work: Future[None] | None = None


class Upkeep:
    """One thread for all tables of a lake. `note` and `wait` may be called from any thread, but
    for one table from one at a time.
    """

    def __init__(self, engine: Engine, options: DeltaOptions) -> None:
        self._engine = engine
        self._options = options
        self._tables: dict[str, _Table] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tailrace-upkeep")

    def note(self, target: Target, cluster_by: Sequence[str], *, is_loaded: bool = False) -> None:
        """A commit was made after this version; every so many, and after a load, look at the
        table.
        """
        every = self._options.compact_after
        if not every:
            return
        version = target.next_version
        table = self._tables.setdefault(target.uri, _Table(version))
        is_due = is_loaded or version // every > table.looked_at // every
        if is_due and not _is_running(table):
            table.looked_at = version
            table.work = self._pool.submit(self._tidy, target.uri, list(cluster_by), table)

    def wait(self, uri: str) -> None:
        """Until nothing is done to the table."""
        table = self._tables.get(uri)
        if table is not None and table.work is not None:
            table.work.exception()

    def close(self) -> None:
        """Finish what is under way, and begin nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def _tidy(self, uri: str, cluster_by: Sequence[str], table: _Table) -> None:
        try:
            self._compact(uri, cluster_by)
            if time.monotonic() - table.vacuumed_at > _VACUUM_EVERY_S:
                table.vacuumed_at = time.monotonic()
                self._vacuum(uri)
        except self._engine.errors as error:
            # Most often a batch that was faster; the reason is the library's, and long.
            logger.info("upkeep gave way table=%s", uri)
            logger.debug("upkeep failed", exc_info=error)
        except TailraceError as error:
            logger.warning("upkeep failed table=%s error=%s", uri, error)

    def _compact(self, uri: str, cluster_by: Sequence[str]) -> None:
        target = Target.open(uri)
        if target is None:
            return
        files = Files.of(target, cluster_by[0] if cluster_by else None)
        if not files.are_untidy:
            return
        failpoint("delta.before_compact")
        self._engine.compact(target, cluster_by if files.is_out_of_order else [])
        failpoint("delta.after_compact")
        sync_from(uri, target.next_version)
        logger.info("table compacted table=%s files=%d", uri, files.count)

    def _vacuum(self, uri: str) -> None:
        target = Target.open(uri)
        if target is not None:
            self._engine.vacuum(target, self._options.vacuum_after)
            logger.info("table vacuumed table=%s", uri)


def _is_running(table: _Table) -> bool:
    return table.work is not None and not table.work.done()
