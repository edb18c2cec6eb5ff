"""The one writer of the chain: seals whole transactions into segments, each durable before it
counts.

A segment's name is the end of its predecessor and is put only if absent, so two writers collide on
the same name. After each put the writer also looks at the frontiers: a name below one belongs to a
past that has been merged or dropped, and whoever succeeds in putting it has been replaced long
ago. Not thread-safe: one thread writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogFenced
from tailrace.failpoint import failpoint
from tailrace.log import layout, segment
from tailrace.log.header import Header, Kind, Note, Part, RelationUse, SourceIdentity
from tailrace.log.heading import head_part, head_parts, head_transactions
from tailrace.log.marks import raise_mark, read_frontiers
from tailrace.log.offsets import ChangeOffsets
from tailrace.log.relations import Describe, RelationsInForce
from tailrace.log.tip import Progress, Tip
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.storage import ObjectExists, ObjectMissing, Store

SEGMENTS_PER_CHECKPOINT: Final = 256
"""A busy log leaves a progress object this often, so that recovery walks no more segments than
that.
"""


@dataclass(frozen=True, slots=True)
class _OpenParts:
    """What has been put so far of a transaction that is still open."""

    xid: int
    parts: tuple[Part, ...] = ()
    uses: tuple[tuple[RelationUse, ...], ...] = ()

    @property
    def change_count(self) -> int:
        """How many of its changes have been put."""
        return sum(part.change_count for part in self.parts)


class Writer:
    """Appends to the log from its tip on, for one connection to the source.

    A call that raised a StoreError may be made again with the same frames.
    """

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
        before = self._open or _OpenParts(xid=int(frames.xids()[0]))
        offsets = ChangeOffsets.of_part(frames, first_ordinal=before.change_count)
        followed = self._relations.follow(frames, offsets)
        header = head_part(
            frames,
            source=self._source,
            writer=self._writer_id,
            start=self.segment_end,
            xid=before.xid,
            relations=followed.uses,
        )
        key = layout.part_key(self.segment_end, self._writer_id, self._part_number)
        # A second try gets a name of its own: nobody needs to know what became of the first.
        self._part_number += 1
        failpoint("part.before_put")
        self._store.put_new(key, memoryview(segment.encode(header, frames)))
        failpoint("part.after_put")
        self._relations.accept(followed)
        part = Part(key, before.change_count, header.change_count, header.data_bytes)
        self._open = _OpenParts(before.xid, (*before.parts, part), (*before.uses, followed.uses))

    def discard_parts(self) -> None:
        """Forget the parts put so far: the log has their transaction. Retention deletes them."""
        self._open = None

    def append(self, frames: Frames, note: Note | None = None) -> Header:
        """Seal whole transactions, or the Commit that ends the parts; durable on return."""
        if self._open is not None:
            header = self._head_parts(frames, self._open, note)
            self._put(header, frames)
        else:
            header = self._append_transactions(frames, note)
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
        failpoint("progress.before_put")
        raise_mark(self._store, layout.progress_key(position), progress.to_json())
        failpoint("progress.after_put")
        self.position = position
        self._segments_since_progress = 0

    def _append_transactions(self, frames: Frames, note: Note | None) -> Header:
        offsets = ChangeOffsets.of(frames)
        followed = self._relations.follow(frames, offsets)
        header = head_transactions(
            frames,
            offsets,
            kind=Kind.SEGMENT,
            source=self._source,
            writer=self._writer_id,
            start=self.segment_end,
            relations=followed.uses,
            note=note,
        )
        self._put(header, frames)
        self._relations.accept(followed)
        return header

    def _head_parts(self, frames: Frames, ended: _OpenParts, note: Note | None) -> Header:
        return head_parts(
            frames,
            source=self._source,
            writer=self._writer_id,
            start=self.segment_end,
            xid=ended.xid,
            parts=ended.parts,
            uses=ended.uses,
            note=note,
        )

    def _put(self, header: Header, frames: Frames) -> None:
        put_segment(self._store, header, memoryview(segment.encode(header, frames)))
        if read_frontiers(self._store).highest > header.start:
            raise _fenced(f"{layout.segment_key(header.start)} belongs to a past that is gone")


def put_segment(store: Store, header: Header, data: bytes | memoryview) -> None:
    """Put the successor of `header.start`, or raise LogFenced if another writer has."""
    key = layout.segment_key(header.start)
    failpoint("seal.before_put")
    try:
        store.put_new(key, data)
    except ObjectExists as error:
        # A put that timed out may have arrived: then the object is ours, and the retry was not
        # needed. One that is gone by now was another's, merged away.
        try:
            found = segment.read_header(store, key)
        except ObjectMissing:
            raise _fenced(f"another writer had put {key}") from error
        if found.writer != header.writer or found.end != header.end:
            raise _fenced(f"another writer has put {key}") from error
    failpoint("seal.after_put")


def put_genesis(
    store: Store,
    source: SourceIdentity,
    start: Lsn,
    *,
    writer_id: str,
    note: Note,
) -> Tip:
    """Begin the chain at `start`, the slot's consistent point."""
    assert start > 0
    header = Header(Kind.GENESIS, source, writer_id, Lsn(0), start, note=note)
    put_segment(store, header, memoryview(segment.encode(header, Frames.empty())))
    return Tip(source, start, start, note)


def _fenced(message: str) -> LogFenced:
    return LogFenced(message, hint="another capture leads this log")
