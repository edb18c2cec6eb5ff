"""Decodes the frames of a log on one core, by the decoder or by the plain one of the tests.

The log is read before the clock starts. With `joined` all segments are decoded by one call, as a
large batch would be.
"""

from __future__ import annotations

import os
import time
from itertools import accumulate, takewhile

import pyarrow as pa

from bench.programs.talk import peak_memory_mb, say, task
from tailrace.decode import decode
from tailrace.log import Reader, Segment, segment
from tailrace.model import ORIGIN, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import open_store
from tests.decode.reference import reference_decode


def main() -> None:
    """Decode once."""
    wanted = task()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    segments = _read(wanted["log"], wanted["changes_max"])
    if wanted["joined"]:
        segments = [_joined(segments)]
    _decode(segments[:1], wanted["decoder"])  # the first call loads what is loaded late
    began, cpu_began = time.monotonic(), time.process_time()
    changes = _decode(segments, wanted["decoder"])
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


def _joined(segments: list[Segment]) -> Segment:
    """All in one. The first header serves: one connection wrote the log, one table is in it."""
    return Segment(segments[0].header, Frames.concat([each.frames for each in segments]))


def _decode(segments: list[Segment], decoder: str) -> int:
    changes = 0
    for each in segments:
        header = each.header
        upto = Offset.whole(each.frames.transactions().end_lsn[-1])
        if decoder == "ours":
            tables = decode(
                each.frames,
                initial=header.initial,
                versions=header.versions,
                after=ORIGIN,
                upto=upto,
            )
            changes += sum(len(table.rows) for table in tables)
        else:
            plain = reference_decode(
                each.frames,
                initial=header.initial,
                versions=header.versions,
                after=ORIGIN,
                upto=upto,
            )
            changes += sum(len(table.rows) for table in plain)
    return changes


if __name__ == "__main__":
    main()
