"""Decodes the frames of a log on one core, by the decoder or by the plain one of the tests.

The log is read before the clock starts, and cut anew: how large the segments are that capture wrote
depends on the pace of that day. Each call decodes `call_changes` changes, or all if that is 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import accumulate, takewhile

import pyarrow as pa

from bench.programs.talk import peak_memory_mb, say, task
from tailrace.decode import decode
from tailrace.log import Reader, Segment, segment
from tailrace.model import ORIGIN, Lsn, Offset, Relation
from tailrace.postgres.frames import Frames
from tailrace.storage import open_store
from tests.decode.reference import reference_decode

_END = Offset.whole(Lsn((1 << 63) - 1))


def main() -> None:
    """Decode once."""
    wanted = task()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    segments = _read(wanted["log"], wanted["changes_max"])
    relations = {
        relation.oid: relation for each in segments for relation in each.header.versions.values()
    }
    calls = list(_cut(Frames.concat([each.frames for each in segments]), wanted["call_changes"]))
    decode_calls = _decode if wanted["decoder"] == "ours" else _decode_row_by_row
    decode_calls(calls[:1], relations)  # loads what is loaded late
    began, cpu_began = time.monotonic(), time.process_time()
    changes = decode_calls(calls, relations)
    seconds = time.monotonic() - began
    say(
        "done",
        seconds=seconds,
        cpu_s=time.process_time() - cpu_began,
        changes=changes,
        memory_mb=peak_memory_mb(),
    )


def _read(log: str, changes_max: int) -> list[Segment]:
    """The segments of the log that hold its first changes, at least one."""
    store = open_store(log)
    links = [link for link in Reader(store).walk(ORIGIN) if link.header.change_count]
    counts = accumulate(link.header.change_count for link in links)
    within = list(takewhile(lambda count: count <= changes_max, counts))
    return [segment.read(store, link.key) for link in links[: max(1, len(within))]]


def _cut(frames: Frames, call_changes: int) -> Iterator[Frames]:
    """The frames in pieces of whole transactions."""
    ends = frames.transactions.last_frame + 1
    counts = frames.change_counts().cumsum()[ends - 1]
    first = 0
    while first < len(frames):
        done = counts[ends == first][0] if first else 0
        reached = (counts >= done + call_changes) & (ends > first) if call_changes else ends < 0
        last = int(ends[reached][0]) if reached.any() else len(frames)
        yield frames.slice(first, last)
        first = last


def _decode(calls: list[Frames], relations: dict[int, Relation]) -> int:
    return sum(
        len(table.rows)
        for frames in calls
        for table in decode(frames, initial=relations, versions={}, after=ORIGIN, upto=_END)
    )


def _decode_row_by_row(calls: list[Frames], relations: dict[int, Relation]) -> int:
    return sum(
        len(table.rows)
        for frames in calls
        for table in reference_decode(
            frames, initial=relations, versions={}, after=ORIGIN, upto=_END
        )
    )


if __name__ == "__main__":
    main()
