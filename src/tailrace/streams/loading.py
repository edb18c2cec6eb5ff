"""The rows of a base, for a sink that takes up the table.

Parts are fetched and decoded a little ahead of the sink, by threads of the driver: numpy and Arrow
do their work outside of Python's lock, and no more than a few parts are ever in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Final

import pyarrow as pa

from tailrace.decode import decode_base
from tailrace.errors import LogError
from tailrace.log import Base, BasePart
from tailrace.log.bases import read_base_part
from tailrace.spark.selection import Selection
from tailrace.storage import ObjectMissing, Store

_AHEAD: Final = 2


def base_rows(store: Store, base: Base, selection: Selection) -> Iterator[pa.Table]:
    """What the stream delivers of a base, in pieces; raises LogError(retry=True) if the base was
    deleted meanwhile, because a newer one has taken its place.
    """
    firsts = accumulate((part.row_count for part in base.parts), initial=0)
    waiting: deque[Future[list[pa.Table]]] = deque()
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="tailrace-load") as pool:
        try:
            for part, first in zip(base.parts, firsts, strict=False):
                waiting.append(pool.submit(_decoded, store, base, part, first, selection))
                if len(waiting) > _AHEAD:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _decoded(
    store: Store, base: Base, part: BasePart, first: int, selection: Selection
) -> list[pa.Table]:
    try:
        lines = read_base_part(store, part)
    except ObjectMissing as error:
        raise LogError(
            f"the base of {base.relation.qualified} at {base.position} is gone",
            hint="a newer one takes its place",
            retry=True,
        ) from error
    pieces = decode_base(
        lines,
        base.relation,
        position=base.position,
        taken_ts_us=base.taken_ts_us,
        first_ordinal=first,
        columns=selection.read_columns,
    )
    return [selection.apply(piece).rows for piece in pieces]
