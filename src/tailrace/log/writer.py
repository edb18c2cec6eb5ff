"""The one writer of the chain: seals whole transactions into segments, each durable before it
counts.

A segment's name is the end of its predecessor and is put only if absent, so two writers collide on
the same name. After each put the writer also looks at the frontiers: a name below one belongs to a
past that has been merged or dropped, and whoever succeeds in putting it has been replaced long
ago. Not thread-safe: one thread writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tailrace.errors import LogFenced
from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.header import Header, Kind, Part, RelationUse, SourceIdentity
from tailrace.log.relations import ChangeOffsets, Describe, RelationsInForce
from tailrace.log.tip import Progress, Tip, frontier
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectExists, Store

SEGMENTS_PER_CHECKPOINT: Final = 256
"""A busy log leaves a progress object this often, so that recovery walks no more segments than
that.
"""


@dataclass(frozen=True, slots=True)
class _OpenParts:
    """What has been put so far of a transaction that is still open."""

    parts: tuple[Part, ...]
    uses: tuple[RelationUse, ...]
    change_count: int
    xid: int


class Writer:
    """Appends to the log from its tip on, for one connection to the source."""

    def __init__(self, store: Store, tip: Tip, *, writer_id: str, describe: Describe) -> None:
        self._store = store
        self._source = tip.source
        self._writer_id = writer_id
        self._relations = RelationsInForce(describe)
        self._open: _OpenParts | None = None
        self._part_number = 0
        self._segments_since_progress = 0
        self.segment_end = tip.segment_end
        self.position = tip.position

    def put_part(self, frames: Frames) -> None:
        """Store a piece of the transaction that is being received; invisible until it is sealed."""
        before = self._open or _OpenParts((), (), 0, int(frames.xids()[0]))
        offsets = ChangeOffsets.of_part(frames, before.change_count)
        uses = self._relations.follow(frames, offsets)
        change_count = int(frames.change_counts().sum())
        header = Header(
            kind=Kind.PART,
            source=self._source,
            writer=self._writer_id,
            start=self.segment_end,
            end=self.segment_end,
            frame_count=len(frames),
            change_count=change_count,
            data_bytes=frames.data_bytes,
            relations=uses,
            xid=before.xid,
        )
        key = layout.part_key(self.segment_end, self._writer_id, self._part_number)
        self._part_number += 1
        failpoint("part.before_put")
        self._store.put_new(key, memoryview(segment.encode(header, frames)))
        failpoint("part.after_put")
        part = Part(key, before.change_count, change_count, frames.data_bytes)
        self._open = _OpenParts(
            (*before.parts, part),
            (*before.uses, *uses),
            before.change_count + change_count,
            before.xid,
        )

    def discard_parts(self) -> None:
        """Forget the parts put so far: the log has their transaction. Retention deletes them."""
        self._open = None

    def append(self, frames: Frames) -> Header:
        """Seal whole transactions, or the Commit that ends the parts; durable on return."""
        header = self._header_of_parts(frames) if self._open else self._header_of(frames)
        self._put(header, segment.encode(header, frames))
        self._open = None
        self.segment_end = header.end
        self.position = max(self.position, header.end)
        self._segments_since_progress += 1
        if self._segments_since_progress >= SEGMENTS_PER_CHECKPOINT:
            self.put_progress(self.position)
        return header

    def put_progress(self, position: Lsn) -> None:
        """Make an idle position durable; the highest counts, so it can never move back."""
        if position < self.position:
            return
        progress = Progress(self._source, position, self.segment_end)
        key = layout.progress_key(position)
        failpoint("progress.before_put")
        # If the name is taken, the same position has been proved before: by us, or by another
        # writer.
        with suppress(ObjectExists):
            self._store.put_new(key, progress.to_json())
        failpoint("progress.after_put")
        self.position = position
        self._segments_since_progress = 0
        self._store.delete([e.key for e in self._store.list(layout.PROGRESS) if e.key < key])

    def _header_of(self, frames: Frames) -> Header:
        transactions = frames.transactions()
        assert len(frames) and int(transactions.last_frame[-1]) == len(frames) - 1
        offsets = ChangeOffsets.of(frames)
        changing = frames.change_counts().nonzero()[0]
        first = last = None
        if len(changing):
            first = offsets.at(int(changing[0]))
            final = offsets.at(int(changing[-1]))
            extra = int(frames.change_counts()[changing[-1]]) - 1
            last = Offset(final.commit_lsn, final.ordinal + extra)
        return Header(
            kind=Kind.SEGMENT,
            source=self._source,
            writer=self._writer_id,
            start=self.segment_end,
            end=Lsn(transactions.end_lsn[-1]),
            frame_count=len(frames),
            transaction_count=len(transactions.end_lsn),
            change_count=int(frames.change_counts().sum()),
            data_bytes=frames.data_bytes,
            first=first,
            last=last,
            commit_ts_us_min=int(transactions.commit_ts_us.min()),
            commit_ts_us_max=int(transactions.commit_ts_us.max()),
            relations=self._relations.follow(frames, offsets),
        )

    def _header_of_parts(self, frames: Frames) -> Header:
        assert self._open is not None and len(frames) == 1
        transactions = frames.transactions()
        end = Lsn(transactions.end_lsn[0])
        commit_ts_us = int(transactions.commit_ts_us[0])
        return Header(
            kind=Kind.SEGMENT,
            source=self._source,
            writer=self._writer_id,
            start=self.segment_end,
            end=end,
            frame_count=1,
            transaction_count=1,
            change_count=self._open.change_count,
            data_bytes=frames.data_bytes,
            first=Offset(end, 0),
            last=Offset(end, self._open.change_count - 1),
            commit_ts_us_min=commit_ts_us,
            commit_ts_us_max=commit_ts_us,
            relations=_united(self._open.uses, end),
            parts=self._open.parts,
            xid=self._open.xid,
        )

    def _put(self, header: Header, data: pa.Buffer) -> None:
        assert header.end > header.start
        put_segment(self._store, header, memoryview(data))
        if frontier(self._store) > header.start:
            raise LogFenced(f"{layout.segment_key(header.start)} belongs to a merged past")


def put_segment(store: Store, header: Header, data: bytes | memoryview) -> None:
    """Put the successor of `header.start`, or raise LogFenced if another writer has."""
    key = layout.segment_key(header.start)
    failpoint("seal.before_put")
    try:
        store.put_new(key, data)
    except ObjectExists as error:
        # A put that timed out may have arrived: then the object is ours, and the retry was not
        # needed.
        found = segment.read_header(store, key)
        if found.writer != header.writer or found.end != header.end:
            raise LogFenced(
                f"another writer has put {key}", hint="another capture leads this log"
            ) from error
    failpoint("seal.after_put")


def put_genesis(
    store: Store,
    source: SourceIdentity,
    start: Lsn,
    *,
    writer_id: str,
    note: Mapping[str, object],
) -> Tip:
    """Begin the chain at `start`, the slot's consistent point."""
    header = Header(Kind.GENESIS, source, writer_id, Lsn(0), start, note=note)
    put_segment(store, header, memoryview(segment.encode(header, Frames.empty())))
    return Tip(source, start, start)


def _united(uses: tuple[RelationUse, ...], end: Lsn) -> tuple[RelationUse, ...]:
    """The uses of all parts as one list: each version once, at the offset where it begins."""
    united: dict[bytes, RelationUse] = {}
    for use in uses:
        known = united.get(use.frame)
        if known is None:
            united[use.frame] = replace(use, since=Offset(end, use.since.ordinal))
        else:
            united[use.frame] = replace(known, change_count=known.change_count + use.change_count)
    return tuple(united.values())
