"""Where the log ends, and how that is found after a stop or a crash.

The tip is the higher of the last segment's end and the highest progress object: nothing that ended
at or before it is missing. Recovery walks the chain from the newest known segment end, checks the
last segment whole, and puts a damaged tail aside. Damage that is followed by anything valid is
refused, never skipped.
"""

from __future__ import annotations

import json
import logging
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from tailrace.errors import SegmentCorrupt, SegmentMissing
from tailrace.log import layout, segment
from tailrace.log.header import FORMAT_VERSION, Header, Note, SourceIdentity
from tailrace.log.marks import read_frontiers
from tailrace.model import Lsn
from tailrace.storage import ObjectExists, ObjectMissing, Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tip:
    """`segment_end` names the next segment; `position` is what may be acknowledged. `note` is that
    of the last segment, or of the genesis if there is none.
    """

    source: SourceIdentity
    segment_end: Lsn
    position: Lsn
    note: Note | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """A position without a change, made durable before it is acknowledged."""

    source: SourceIdentity
    position: Lsn
    segment_end: Lsn

    def to_json(self) -> bytes:
        """As stored: the checksum is over the text without it."""
        value: dict[str, object] = {
            "format": FORMAT_VERSION,
            "system_id": self.source.system_id,
            "timeline": self.source.timeline,
            "era": self.source.era,
            "position": int(self.position),
            "segment_end": int(self.segment_end),
        }
        return _dump({**value, "crc32": f"{zlib.crc32(_dump(value)):08x}"})

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> Progress:
        """Read what `to_json` wrote under this name; raises SegmentCorrupt."""
        try:
            value = json.loads(data)
            source = SourceIdentity(value["system_id"], value["timeline"], value["era"])
            progress = cls(source, Lsn(value["position"]), Lsn(value["segment_end"]))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise _corrupt_progress(key) from error
        if data != progress.to_json() or key != layout.progress_key(progress.position):
            raise _corrupt_progress(key)
        return progress


def _dump(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _corrupt_progress(key: str) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{key} is damaged",
        hint="restore it from a backup; without it the log ends at its last segment",
    )


def read_genesis(store: Store) -> Header | None:
    """How the log began, or None if it has not."""
    try:
        return segment.read_header(store, layout.GENESIS)
    except ObjectMissing:
        return None


def newest_progress(store: Store) -> Progress | None:
    """The highest progress object. One that vanishes while being read has been outdone: look
    again.
    """
    while entries := store.list(layout.PROGRESS):
        key = entries[-1].key
        with suppress(ObjectMissing):
            return Progress.from_json(store.get(key), key=key)
    return None


def recover_tip(store: Store) -> Tip | None:
    """Find the tip and mend the tail, as the leader; None if the log has no genesis."""
    # A writer that was killed may have left objects that are there but would not survive a power
    # cut. What follows from them is acknowledged, so they are made durable first.
    for level in (layout.SEGMENTS, layout.PARTS, layout.PROGRESS):
        store.sync(level)
    genesis = read_genesis(store)
    if genesis is None:
        return None
    progress = newest_progress(store)
    source, end = genesis.source, genesis.end
    if progress is not None:
        source, end = progress.source, max(end, progress.segment_end)
    frontier = read_frontiers(store).highest
    while True:
        end = max(end, frontier)
        last = _last_of_chain(store, end)
        if last is not None:
            source, end = last.source, last.end
        # A merger that was left behind may have deleted names while we followed them. It moves the
        # frontier first, and the chain goes on from there.
        frontier = read_frontiers(store).highest
        if frontier <= end:
            position = max(end, progress.position) if progress is not None else end
            ending = last if last is not None and last.end == end else ending_at(store, end)
            return Tip(source, end, position, (ending or genesis).note)


def ending_at(store: Store, end: Lsn) -> Header | None:
    """The segment that ends the log; None if it has none."""
    # The small level first: what is deleted after this listing is in the merged level by then.
    small = [entry.key for entry in store.list(layout.SEGMENTS) if entry.key != layout.GENESIS]
    merged = [entry.key for entry in store.list(layout.MERGED)]
    ending = [key for key in merged if layout.range_of(key)[1] == end]
    for key in [*ending, *reversed(small)]:
        with suppress(ObjectMissing):
            header = segment.read_header(store, key)
            if header.end <= end:
                return header if header.end == end else None
    return None


def _last_of_chain(store: Store, start: Lsn) -> Header | None:
    """Follow the chain from `start`; the header of its last segment, which is sound."""
    names = store.list(layout.SEGMENTS, after=layout.segment_key(start - 1))
    newest = names[-1].key if names else ""
    last = None
    while (found := _successor(store, layout.segment_key(start), newest)) is not None:
        last, start = found, found.end
    return last


def _successor(store: Store, key: str, newest: str) -> Header | None:
    """The segment of this name; None if there is none, or if it was a torn tail."""
    try:
        # Frames are checked when they are read. Only the last segment is checked here: it is the
        # one that a crash can have torn, and what is acknowledged next rests on it.
        return segment.read_header(store, key) if key < newest else _read_whole(store, key)
    except ObjectMissing as error:
        if key < newest and read_frontiers(store).highest <= layout.position_of(key):
            raise SegmentMissing(
                f"{key} is missing, and the log goes on after it",
                hint="restore the object from a backup: leaving it out would lose changes",
            ) from error
    except SegmentCorrupt as error:
        if store.list(layout.SEGMENTS, after=key):
            raise SegmentCorrupt(
                f"{error}, and the log goes on after it",
                hint="restore the object from a backup: leaving it out would lose changes",
            ) from error
        _put_aside(store, key)
    return None


def _read_whole(store: Store, key: str) -> Header:
    """A segment's header, once all its frames have been read."""
    header = segment.read(store, key).header
    for part in header.parts:
        try:
            segment.read(store, part.key)
        except ObjectMissing as error:
            raise SegmentCorrupt(f"{key} names {part.key}, which is missing") from error
    return header


def _put_aside(store: Store, key: str) -> None:
    """Move a damaged last segment out of the chain: what it held was not acknowledged, or the slot
    will be found ahead of the log.
    """
    logger.warning("torn tail put aside key=%s", key)
    data = store.get(key)
    for number in count():
        with suppress(ObjectExists):
            store.put_new(layout.torn_key(number, key), data)
            break
    store.delete([key])
