"""Small segments become large ones, in a level of their own, without changing an offset.

A merge puts the merged segment, then waits, then moves the frontier, then deletes the small ones.
A crash between any two steps leaves a log that reads the same; the next run goes on from what it
finds. Only the leader merges.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.header import Header, Kind, RelationUse
from tailrace.log.reader import Link
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectExists, Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """Merge runs of small segments once there are many, or enough bytes, and none of them is young.

    `grace_s` is how long a segment stays readable under its own name after it was put and after it
    was merged: longer than any reader takes from listing to reading.
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

    def step(self, now_s: float) -> int:
        """Merge at most one run, delete what earlier merges made dead; returns how many were
        merged.
        """
        self._delete_dead(now_s)
        run = self._next_run(now_s)
        if run:
            self._merge(run)
        return len(run)

    def _next_run(self, now_s: float) -> list[Link]:
        """The oldest run of small segments that is worth a merge."""
        policy = self._policy
        covered = [layout.range_of(entry.key) for entry in self._store.list(layout.MERGED)]
        old = [
            entry
            for entry in self._store.list(layout.SEGMENTS)
            if entry.key != layout.GENESIS
            and entry.modified_s <= now_s - policy.grace_s
            and not _is_covered(layout.position_of(entry.key), covered)
        ]
        run: list[Link] = []
        size = 0
        for entry in old:
            link = Link(entry.key, segment.read_header(self._store, entry.key))
            fits = not link.header.parts and link.data_bytes < policy.target_bytes // 2
            follows = not run or run[-1].header.end == link.header.start
            if not (fits and follows and size + link.data_bytes <= policy.target_bytes):
                if self._is_worth(run, size):
                    return run
                run, size = [], 0
            if fits:
                run.append(link)
                size += link.data_bytes
        return run if self._is_worth(run, size) else []

    def _is_worth(self, run: list[Link], size: int) -> bool:
        policy = self._policy
        is_full = len(run) >= policy.segment_count_min or size >= policy.target_bytes // 2
        return len(run) > 1 and is_full

    def _merge(self, run: list[Link]) -> None:
        segments = [segment.read(self._store, link.key) for link in run]
        frames = Frames.concat([one.frames for one in segments])
        header = merged_header([one.header for one in segments], writer=self._writer_id)
        failpoint("merge.before_put")
        with suppress(ObjectExists):
            data = segment.encode(header, frames)
            self._store.put_new(layout.merged_key(header.start, header.end), memoryview(data))
        failpoint("merge.after_put")
        logger.info("segments merged count=%d start=%s end=%s", len(run), header.start, header.end)

    def _delete_dead(self, now_s: float) -> None:
        """Delete small segments that a merged one has covered for longer than the grace time."""
        settled = [
            layout.range_of(entry.key)
            for entry in self._store.list(layout.MERGED)
            if entry.modified_s <= now_s - self._policy.grace_s
        ]
        dead = [
            entry.key
            for entry in self._store.list(layout.SEGMENTS)
            if _is_covered(layout.position_of(entry.key), settled)
        ]
        if not dead:
            return
        move_frontier(self._store, "merged", max(end for _, end in settled))
        failpoint("merge.before_delete")
        self._store.delete(dead)
        failpoint("merge.after_delete")


def merged_header(headers: list[Header], *, writer: str) -> Header:
    """One header for a run of segments without parts."""
    first = next((header.first for header in headers if header.first), None)
    last = next((header.last for header in reversed(headers) if header.last), None)
    with_times = [header for header in headers if header.transaction_count] or headers
    return replace(
        headers[0],
        kind=Kind.MERGED,
        writer=writer,
        end=headers[-1].end,
        frame_count=sum(header.frame_count for header in headers),
        transaction_count=sum(header.transaction_count for header in headers),
        change_count=sum(header.change_count for header in headers),
        data_bytes=sum(header.data_bytes for header in headers),
        first=first,
        last=last,
        commit_ts_us_min=min(header.commit_ts_us_min for header in with_times),
        commit_ts_us_max=max(header.commit_ts_us_max for header in with_times),
        relations=_merged_relations(headers),
    )


def move_frontier(store: Store, kind: str, position: Lsn) -> None:
    """Declare names below `position` dead; it never moves back."""
    key = layout.frontier_key(kind, position)
    with suppress(ObjectExists):
        store.put_new(key, b"")
    entries = store.list(layout.frontier_prefix(kind))
    store.delete(entry.key for entry in entries if entry.key < key)


def _merged_relations(headers: list[Header]) -> tuple[RelationUse, ...]:
    """The uses one after the other; neighbours of the same version are one use."""
    merged: dict[int, list[RelationUse]] = {}
    for header in headers:
        for use in sorted(header.relations, key=_since):
            uses = merged.setdefault(use.relation.oid, [])
            if uses and uses[-1].frame == use.frame:
                total = uses[-1].change_count + use.change_count
                uses[-1] = replace(uses[-1], change_count=total)
            else:
                # Only the version that a table has when the merged segment begins is an initial
                # one.
                uses.append(replace(use, initial=use.initial and not uses))
    return tuple(use for uses in merged.values() for use in uses)


def _since(use: RelationUse) -> Offset:
    return use.since


def _is_covered(position: Lsn, ranges: Iterable[tuple[Lsn, Lsn]]) -> bool:
    return any(start <= position < end for start, end in ranges)
