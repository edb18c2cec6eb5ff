"""The names of the log's objects.

Names carry positions as 16 hex digits, so they sort as the log does.

    intent.json                       a source is about to get its slot
    segments/<start>.arrow            the chain; <start> is the end of the predecessor
    merged/<start>-<end>.arrow        the changes of several small segments, in one object
    parts/<start>-<writer>-<n>.arrow  pieces of a huge transaction; a segment names them
    progress/<position>.json          nothing before <position> is missing
    frontier/merged/<position>        segment names below are dead: merged away
    frontier/retained/<position>      the log starts here: what was before is deleted
    publication/<n>.json              the publication after our n-th change of it
    readers/<reader>/<position>       how far a registered reader has got
    streams/<stream>/...              a stream's start and its batches
    torn/<n>-<name>                   a damaged tail that recovery put aside
"""

from __future__ import annotations

from typing import Final

from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn

SEGMENTS: Final = "segments/"
MERGED: Final = "merged/"
PARTS: Final = "parts/"
PROGRESS: Final = "progress/"
FRONTIER: Final = "frontier/"
PUBLICATION: Final = "publication/"
READERS: Final = "readers/"
STREAMS: Final = "streams/"
TORN: Final = "torn/"
INTENT: Final = "intent.json"
GENESIS: Final = f"{SEGMENTS}{Lsn(0).hex16}.arrow"
"""The first segment of the chain: it starts at nothing, holds no frames, and ends where the slot
begins.
"""


def segment_key(start: int) -> str:
    """The one name under which the successor of a segment that ends at `start` can be put."""
    return f"{SEGMENTS}{Lsn(start).hex16}.arrow"


def merged_key(start: int, end: int) -> str:
    """The name of a merged segment."""
    return f"{MERGED}{Lsn(start).hex16}-{Lsn(end).hex16}.arrow"


def part_key(start: int, writer: str, number: int) -> str:
    """The name of a part of the transaction that follows `start`."""
    return f"{PARTS}{Lsn(start).hex16}-{writer}-{number:06d}.arrow"


def progress_key(position: int) -> str:
    """The name of a progress object."""
    return f"{PROGRESS}{Lsn(position).hex16}.json"


def frontier_prefix(kind: str) -> str:
    """The folder of a frontier; `kind` is `merged` or `retained`."""
    return f"{FRONTIER}{kind}/"


def frontier_key(kind: str, position: int) -> str:
    """The name of a frontier at `position`."""
    return f"{frontier_prefix(kind)}{Lsn(position).hex16}"


def publication_key(number: int) -> str:
    """The name of the n-th record of the publication."""
    return f"{PUBLICATION}{number:08d}.json"


def position_of(key: str) -> Lsn:
    """The first position in a key's last part."""
    return _positions(key)[0]


def range_of(key: str) -> tuple[Lsn, Lsn]:
    """Start and end of a merged segment, from its name."""
    start, end = _positions(key)[:2]
    return start, end


def _positions(key: str) -> list[Lsn]:
    name = key.rsplit("/", 1)[-1].split(".", 1)[0]
    try:
        return [Lsn.from_hex16(part) for part in name.split("-") if len(part) == 16]
    except ValueError as error:
        raise SegmentCorrupt(f"the log holds an object with a strange name: {key}") from error
