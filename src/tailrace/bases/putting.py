"""Puts parts of bases in a thread, while whoever has read them reads on.

One at a time: at most one block waits in memory beside the one that is being read.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

import pyarrow as pa

from tailrace.failpoint import failpoint
from tailrace.log import BasePart
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import put_base_part
from tailrace.storage import Store


class Putter:
    """Used by one thread; `pool` has one of its own."""

    def __init__(self, pool: ThreadPoolExecutor, store: Store) -> None:
        self._pool = pool
        self._store = store
        self._under_way: list[Future[BasePart]] = []

    def put(
        self, base: BaseIdentity, rows: pa.BinaryArray, *, stretch: int, number: int
    ) -> Future[BasePart]:
        """Begin, once the part before is done with, whatever became of it."""
        wait(self._under_way)
        future = self._pool.submit(self._put, base, rows, stretch, number)
        self._under_way = [future]
        return future

    def _put(self, base: BaseIdentity, rows: pa.BinaryArray, stretch: int, number: int) -> BasePart:
        part = put_base_part(self._store, base, rows, stretch=stretch, number=number)
        failpoint("base.after_part")
        return part
