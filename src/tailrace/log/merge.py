"""Small segments become large ones, in a level of their own, without changing an offset.

A merge puts the merged segment, then waits, then moves the frontier, then deletes the small ones.
A crash between any two steps leaves a log that reads the same; the next run goes on from what it
finds. Only the leader merges; one that was left behind does no harm, as two merged segments over
the same range hold the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.header import DRAINED, Header
from tailrace.log.layout import FrontierKind
from tailrace.log.marks import move_frontier
from tailrace.log.neighbours import Neighbours, joined_header
from tailrace.log.ranges import Ranges
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectExists, Store
from tailrace.storage.store import Entries

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """Merge runs of small segments once there are many, or enough bytes, and none of them is young.

    `grace_s` is how long a segment stays readable under its own name after it was put and after it
    was merged: longer than most readers take from planning to reading, so that few have to look
    again.
    """

    target_bytes: int = 32 << 20
    segment_count_min: int = 32
    grace_s: float = 60.0


class Merger:
    """One step at a time, driven by the leader's housekeeping."""

    def __init__(self, store: Store, *, writer_id: str, policy: MergePolicy) -> None:
        self._store = store
        self._writer_id = writer_id
        self._policy = policy
        self._headers: dict[str, Header] = {}

    def step(self, now_s: float) -> int:
        """Merge at most one run, delete what earlier merges made dead; returns how many were
        merged.
        """
        # Small ones first: what is merged meanwhile is then seen as such.
        small, merged = self._store.list(layout.SEGMENTS), self._store.list(layout.MERGED)
        self._delete_dead(small, merged, now_s)
        run = self._next_run(small, merged, now_s)
        if run:
            self._merge(run)
        return len(run)

    def _next_run(self, small: Entries, merged: Entries, now_s: float) -> list[Header]:
        """The oldest run of small segments that is worth a merge."""
        run = _Run(self._policy)
        for header in self._candidates(small, merged, now_s):
            if not run.takes(header):
                if run.is_worth_it:
                    break
                run = _Run(self._policy)
            if run.takes(header):
                run.add(header)
        return run.headers if run.is_worth_it else []

    def _candidates(self, small: Entries, merged: Entries, now_s: float) -> list[Header]:
        """The small segments that are old enough and not merged yet, in order."""
        ranges = Ranges.of(merged)
        keys = [
            entry.key
            for entry in small
            if entry.key != layout.GENESIS
            and entry.modified_s <= now_s - self._policy.grace_s
            and ranges.around(layout.position_of(entry.key)) is None
        ]
        known = self._headers
        self._headers = {
            key: known.get(key) or segment.read_header(self._store, key) for key in keys
        }
        return list(self._headers.values())

    def _merge(self, headers: list[Header]) -> None:
        keys = [layout.segment_key(header.start) for header in headers]
        frames = Frames.concat([segment.read(self._store, key).frames for key in keys])
        header = joined_header(headers, writer=self._writer_id)
        failpoint("merge.before_put")
        with suppress(ObjectExists):
            data = segment.encode(header, frames)
            self._store.put_new(layout.merged_key(header.start, header.end), memoryview(data))
        failpoint("merge.after_put")
        logger.info("segments merged count=%d start=%s end=%s", len(keys), header.start, header.end)

    def _delete_dead(self, small: Entries, merged: Entries, now_s: float) -> None:
        """Delete small segments that a merged one has covered for longer than the grace time."""
        settled = Ranges.of(
            entry for entry in merged if entry.modified_s <= now_s - self._policy.grace_s
        )
        dead: dict[tuple[Lsn, Lsn], list[str]] = {}
        for entry in small:
            covering = settled.around(layout.position_of(entry.key))
            if covering is not None:
                dead.setdefault(covering, []).append(entry.key)
        if dead:
            # A merger that was killed may have left a merged segment that a power cut would take.
            self._store.sync(layout.MERGED)
        for start, end in sorted(dead):
            # The last look at what takes the small ones' place: from here on it is the only copy.
            segment.read(self._store, layout.merged_key(start, end))
            move_frontier(self._store, FrontierKind.MERGED, end)
            failpoint("merge.before_delete")
            self._store.delete(dead[start, end])
            failpoint("merge.after_delete")


class _Run:
    """Small neighbours that can become one."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._neighbours = Neighbours(policy.target_bytes)

    @property
    def headers(self) -> list[Header]:
        """Those taken so far."""
        return self._neighbours.headers

    @property
    def is_worth_it(self) -> bool:
        """Whether there are enough segments or bytes."""
        policy, count = self._policy, len(self.headers)
        is_full = (
            count >= policy.segment_count_min or self._neighbours.size >= policy.target_bytes // 2
        )
        return count > 1 and is_full

    def takes(self, header: Header) -> bool:
        """Whether this segment can be the next."""
        is_small = not header.parts and header.data_bytes < self._policy.target_bytes // 2
        return is_small and self._neighbours.takes(header) and self._continues(header)

    def add(self, header: Header) -> None:
        """Take it."""
        self._neighbours.add(header)

    def _continues(self, header: Header) -> bool:
        # "Drained up to here" is said of a segment's end: it must not come to cover what was
        # streamed after it.
        return not self.headers or _is_drained(self.headers[-1]) == _is_drained(header)


def _is_drained(header: Header) -> bool:
    return header.note is not None and DRAINED in header.note
