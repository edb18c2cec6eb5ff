"""Where the log ends, and how that is found after a stop or a crash.

The tip is the higher of the last segment's end and the highest progress object: nothing that ended
at or before it is missing. Recovery walks the chain from the newest known segment end, checks the
last segment whole, and puts a damaged tail aside. Damage that is followed by anything valid is
refused, never skipped.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from tailrace.errors import SegmentCorrupt
from tailrace.log import layout, segment
from tailrace.log.header import Header, SourceIdentity
from tailrace.model import Lsn
from tailrace.storage import ObjectExists, ObjectMissing, Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tip:
    """`segment_end` names the next segment; `position` is what may be acknowledged."""

    source: SourceIdentity
    segment_end: Lsn
    position: Lsn


@dataclass(frozen=True, slots=True)
class Progress:
    """A position without a change, made durable before it is acknowledged."""

    source: SourceIdentity
    position: Lsn
    segment_end: Lsn

    def to_json(self) -> bytes:
        """As stored."""
        value = {
            "system_id": self.source.system_id,
            "timeline": self.source.timeline,
            "era": self.source.era,
            "position": int(self.position),
            "segment_end": int(self.segment_end),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> Progress:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            value = json.loads(data)
            source = SourceIdentity(value["system_id"], value["timeline"], value["era"])
            return cls(source, Lsn(value["position"]), Lsn(value["segment_end"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SegmentCorrupt(f"{key} cannot be read") from error


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
        try:
            progress = Progress.from_json(store.get(key), key=key)
        except ObjectMissing:
            continue
        if progress.position != layout.position_of(key):
            raise SegmentCorrupt(f"{key} holds the position {progress.position}")
        return progress
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
    source, start = genesis.source, max(genesis.end, frontier(store))
    if progress is not None:
        source, start = progress.source, max(start, progress.segment_end)
    while (found := _successor(store, layout.segment_key(start), progress)) is not None:
        source, start = found.source, found.end
    return Tip(source, start, max(start, progress.position) if progress is not None else start)


def frontier(store: Store) -> Lsn:
    """The highest position below which segment names are dead: merged away, or dropped by
    retention.
    """
    entries = store.list(layout.FRONTIER)
    return max((layout.position_of(entry.key) for entry in entries), default=Lsn(0))


def _successor(store: Store, key: str, progress: Progress | None) -> Header | None:
    """The segment of this name, checked; None if there is none or if it was a torn tail."""
    try:
        header = segment.read_header(store, key)
        if store.list(layout.SEGMENTS, after=key):
            # A later segment checks itself in turn; this one's frames are checked when they are
            # read.
            return header
        return segment.read(store, key).header
    except ObjectMissing:
        return None
    except SegmentCorrupt as error:
        start = layout.position_of(key)
        if store.list(layout.SEGMENTS, after=key) or (progress and progress.position > start):
            raise SegmentCorrupt(
                f"{error}, and the log goes on after it",
                hint="restore the object from a backup: leaving it out would lose changes",
            ) from error
    _put_aside(store, key)
    return None


def _put_aside(store: Store, key: str) -> None:
    logger.warning("torn tail put aside key=%s", key)
    number = 0
    while True:
        try:
            store.put_new(f"{layout.TORN}{number:04d}-{key.rsplit('/', 1)[-1]}", store.get(key))
            break
        except ObjectExists:
            number += 1
    store.delete([key])
