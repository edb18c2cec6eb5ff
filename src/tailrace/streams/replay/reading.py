"""Reads a range of the log for a replay, batch by batch, in threads of the driver.

The same plan and the same code as on an executor. A replay is bounded and its batches go to one
sink, so a query of its own would only start later, and take cores from those that are live. As with
the rows of a base, numpy and Arrow do their work outside of Python's lock, and one batch is decoded
while the one before is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tailrace.decode import TableChanges
from tailrace.model import Offset
from tailrace.spark.packed import PackedOptions, PackedStreamReader
from tailrace.spark.packing import Unpacked, joined
from tailrace.spark.planning import LogPartition
from tailrace.storage import Store

_THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class _Batch:
    """The changes of `(after, upto]`, on their way."""

    after: Offset
    upto: Offset
    parts: list[Future[list[TableChanges]]]

    def result(self) -> Unpacked:
        runs = (run for part in self.parts for run in part.result())
        return Unpacked(self.after, self.upto, joined(runs))


def read_batches(
    store: Store, options: PackedOptions, watch: Callable[[], None]
) -> Generator[Unpacked]:
    """The batches of `(start, end]`, in order. `watch` is called before each, and raises if there
    is to be no more.
    """
    reader = PackedStreamReader(options)
    waiting: deque[_Batch] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="tailrace-replay") as pool:

        def decode(group: LogPartition, after: Offset) -> list[TableChanges]:
            return list(reader.changes(store, group, after))

        after = options.start
        while (upto := reader.next_end(after, reader.getDefaultReadLimit())) > after:
            watch()
            parts = [pool.submit(decode, group, after) for group in reader.plan(after, upto)]
            waiting.append(_Batch(after, upto, parts))
            if len(waiting) > 1:
                yield waiting.popleft().result()
            after = upto
        while waiting:
            watch()
            yield waiting.popleft().result()
