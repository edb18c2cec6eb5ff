"""Small segments become large ones, in a level of their own, without changing an offset.

A merge puts the merged segment, then waits, then moves the frontier, then deletes the small ones.
A crash between any two steps leaves a log that reads the same; the next run goes on from what it
finds. Only the leader merges; one that was left behind does no harm, as two merged segments over
the same range hold the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.header import DRAINED, Header, Kind
from tailrace.log.layout import FrontierKind
from tailrace.log.marks import move_frontier
from tailrace.log.ranges import Ranges
from tailrace.log.relations import join_uses
from tailrace.model import Lsn, Relation
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectExists, Store

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
        self._delete_dead(now_s)
        run = self._next_run(now_s)
        if run:
            self._merge(run)
        return len(run)

    def _next_run(self, now_s: float) -> list[Header]:
        """The oldest run of small segments that is worth a merge."""
        run = _Run(self._policy)
        for header in self._candidates(now_s):
            if not run.takes(header):
                if run.is_worth_it:
                    break
                run = _Run(self._policy)
            if run.takes(header):
                run.add(header)
        return run.headers if run.is_worth_it else []

    def _candidates(self, now_s: float) -> list[Header]:
        """The small segments that are old enough and not merged yet, in order."""
        small = self._store.list(layout.SEGMENTS)
        merged = Ranges.of(self._store.list(layout.MERGED))
        keys = [
            entry.key
            for entry in small
            if entry.key != layout.GENESIS
            and entry.modified_s <= now_s - self._policy.grace_s
            and merged.around(layout.position_of(entry.key)) is None
        ]
        known = self._headers
        self._headers = {
            key: known.get(key) or segment.read_header(self._store, key) for key in keys
        }
        return list(self._headers.values())

    def _merge(self, headers: list[Header]) -> None:
        keys = [layout.segment_key(header.start) for header in headers]
        frames = Frames.concat([segment.read(self._store, key).frames for key in keys])
        header = merged_header(headers, writer=self._writer_id)
        failpoint("merge.before_put")
        with suppress(ObjectExists):
            data = segment.encode(header, frames)
            self._store.put_new(layout.merged_key(header.start, header.end), memoryview(data))
        failpoint("merge.after_put")
        logger.info("segments merged count=%d start=%s end=%s", len(keys), header.start, header.end)

    def _delete_dead(self, now_s: float) -> None:
        """Delete small segments that a merged one has covered for longer than the grace time."""
        small = self._store.list(layout.SEGMENTS)
        settled = Ranges.of(
            entry
            for entry in self._store.list(layout.MERGED)
            if entry.modified_s <= now_s - self._policy.grace_s
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
    """Neighbouring small segments that can become one."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._size = 0
        self._versions: dict[bytes, Relation] = {}
        self.headers: list[Header] = []

    @property
    def is_worth_it(self) -> bool:
        """Whether there are enough segments or bytes."""
        policy, count = self._policy, len(self.headers)
        is_full = count >= policy.segment_count_min or self._size >= policy.target_bytes // 2
        return count > 1 and is_full

    def takes(self, header: Header) -> bool:
        """Whether this segment can be the next."""
        policy = self._policy
        is_small = not header.parts and header.data_bytes < policy.target_bytes // 2
        last = self.headers[-1] if self.headers else None
        follows = last is None or (last.end, last.source) == (header.start, header.source)
        fits = self._size + header.data_bytes <= policy.target_bytes
        return is_small and follows and fits and self._agrees(header) and self._continues(header)

    def add(self, header: Header) -> None:
        """Take it."""
        self.headers.append(header)
        self._size += header.data_bytes
        self._versions.update(header.versions)

    def _agrees(self, header: Header) -> bool:
        # The catalog may have said different things of the same Relation frame at two times. A
        # header has room for one of them.
        return all(
            self._versions.get(frame, relation) == relation
            for frame, relation in header.versions.items()
        )

    def _continues(self, header: Header) -> bool:
        # "Drained up to here" is said of a segment's end: it must not come to cover what was
        # streamed after it.
        return not self.headers or _is_drained(self.headers[-1]) == _is_drained(header)


def _is_drained(header: Header) -> bool:
    return header.note is not None and DRAINED in header.note


def merged_header(headers: list[Header], *, writer: str) -> Header:
    """One header for a run of segments without parts."""
    return replace(
        headers[0],
        kind=Kind.MERGED,
        writer=writer,
        end=headers[-1].end,
        frame_count=sum(header.frame_count for header in headers),
        transaction_count=sum(header.transaction_count for header in headers),
        change_count=sum(header.change_count for header in headers),
        data_bytes=sum(header.data_bytes for header in headers),
        first=next((header.first for header in headers if header.first), None),
        last=next((header.last for header in reversed(headers) if header.last), None),
        commit_ts_us_min=min(header.commit_ts_us_min for header in headers),
        commit_ts_us_max=max(header.commit_ts_us_max for header in headers),
        relations=join_uses(header.relations for header in headers),
        note=next((header.note for header in reversed(headers) if header.note), None),
    )
