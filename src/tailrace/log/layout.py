"""The names of the log's objects.

Names carry positions as 16 hex digits, so they sort as the log does.

    intent.json                       a source is about to get its slot
    segments/<start>.arrow            the chain; <start> is the end of the predecessor
    merged/<start>-<end>.arrow        the changes of several small segments, in one object
    parts/<start>-<writer>-<n>.arrow  pieces of a huge transaction; a segment names them
    progress/<position>.json          nothing before <position> is missing
    frontier/merged/<position>        segment names below are dead: merged away
    frontier/retained/<position>      the log starts here: what was before is deleted
    bases/<oid>/<position>/...        a whole table as of <position>: its rows, then base.json
    wanted/<oid>/<position>           a base of the table at or after <position> is asked for
    gone/<oid>                        the table is not captured any more
    tables/<oid>/<n>.json             how a published table stood when it was last looked at
    shapes/<oid>/<name>               a shape in which its rows came since then
    strays/<oid>/<name>               a partition that rows came from and no look has shown
    publication/<n>.json              the publication after our n-th change of it
    inserts/<n>.json                  the same, of the publication of inserts alone
    buffers/<n>.json                  the same, of the publication of triggers' buffers
    readers/<reader>/<position>       how far a registered reader has got
    streams/<stream>/...              a stream's start, its batches and its dead letters
    replays/<stream>/...              what is asked of a stream once more, and what became of it
    roster/<n>.json                   the streams, as the control schema last had them
    torn/<n>-<name>                   a damaged tail that recovery put aside
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from tailrace.errors import SegmentCorrupt
from tailrace.model import Lsn

SEGMENTS: Final = "segments/"
MERGED: Final = "merged/"
PARTS: Final = "parts/"
PROGRESS: Final = "progress/"
FRONTIER: Final = "frontier/"
BASES: Final = "bases/"
WANTED: Final = "wanted/"
GONE: Final = "gone/"
TABLES: Final = "tables/"
SHAPES: Final = "shapes/"
STRAYS: Final = "strays/"
PUBLICATION: Final = "publication/"
INSERTS: Final = "inserts/"
BUFFERS: Final = "buffers/"
READERS: Final = "readers/"
STREAMS: Final = "streams/"
REPLAYS: Final = "replays/"
ROSTER: Final = "roster/"
TORN: Final = "torn/"
INTENT: Final = "intent.json"
LEVELS: Final = (
    *(SEGMENTS, MERGED, PARTS, PROGRESS, FRONTIER, BASES, WANTED, GONE, TABLES, SHAPES),
    *(STRAYS, PUBLICATION, INSERTS, BUFFERS, READERS, STREAMS, REPLAYS, ROSTER, TORN),
)
"""All that a log consists of, beside the intent."""
GENESIS: Final = f"{SEGMENTS}{Lsn(0).hex16}.arrow"
"""The first segment of the chain: it starts at nothing, holds no frames, and ends where the slot
begins.
"""


class FrontierKind(StrEnum):
    """Why a segment's name is dead."""

    MERGED = "merged"
    RETAINED = "retained"


def segment_key(start: int) -> str:
    """The one name under which the successor of a segment that ends at `start` can be put."""
    return f"{SEGMENTS}{Lsn(start).hex16}.arrow"


def merged_key(start: int, end: int) -> str:
    """The name of a merged segment."""
    return f"{MERGED}{Lsn(start).hex16}-{Lsn(end).hex16}.arrow"


def part_prefix(start: int, writer: str) -> str:
    """How the names of a writer's parts of the transaction that follows `start` begin."""
    return f"{PARTS}{Lsn(start).hex16}-{writer}-"


def part_key(start: int, writer: str, number: int) -> str:
    """The name of one part."""
    return f"{part_prefix(start, writer)}{number:06d}.arrow"


def progress_key(position: int) -> str:
    """The name of a progress object."""
    return f"{PROGRESS}{Lsn(position).hex16}.json"


def frontier_key(kind: FrontierKind, position: int) -> str:
    """The name of a frontier at `position`."""
    return f"{FRONTIER}{kind}/{Lsn(position).hex16}"


def base_prefix(oid: int, position: int) -> str:
    """The folder of a table's base as of `position`."""
    return f"{BASES}{oid}/{Lsn(position).hex16}/"


def base_key(oid: int, position: int) -> str:
    """The name that makes a base complete: it is put last."""
    return f"{base_prefix(oid, position)}base.json"


def base_part_key(oid: int, position: int, stretch: int, number: int) -> str:
    """The name of a base's n-th part of one stretch of the table."""
    return f"{base_prefix(oid, position)}{stretch:06d}-{number:06d}.arrow"


def base_of(key: str) -> tuple[int, Lsn]:
    """The table and the position of the base that an object belongs to; raises SegmentCorrupt."""
    match = _BASE.match(key)
    if match is None:
        raise _strange(key)
    return int(match[1]), Lsn.from_hex16(match[2])


def wanted_key(oid: int, position: int) -> str:
    """The name that asks for a base of a table, taken at or after `position`."""
    return f"{WANTED}{oid}/{Lsn(position).hex16}"


def gone_key(oid: int) -> str:
    """The name that says that a table is not captured any more."""
    return f"{GONE}{oid}"


def gone_table(key: str) -> int:
    """The table that such a name is about; raises SegmentCorrupt."""
    oid = key.removeprefix(GONE)
    if not oid.isdigit():
        raise _strange(key)
    return int(oid)


def table_prefix(oid: int) -> str:
    """The folder of what is known about a published table."""
    return f"{TABLES}{oid}/"


def shape_key(oid: int, name: str) -> str:
    """The name of a shape that a table's rows came in between two looks at it."""
    return f"{SHAPES}{oid}/{name}"


def stray_key(oid: int, name: str) -> str:
    """The name of a partition that rows came from and that no look has shown."""
    return f"{STRAYS}{oid}/{name}"


def table_key(oid: int, number: int) -> str:
    """The name of the n-th record of a published table."""
    return f"{table_prefix(oid)}{number:08d}.json"


def publication_key(level: str, number: int) -> str:
    """The name of the n-th record of a publication; `level` is PUBLICATION or INSERTS."""
    return f"{level}{number:08d}.json"


def torn_key(number: int, key: str) -> str:
    """Where a damaged segment is put aside; `number` tells several of the same name apart."""
    return f"{TORN}{number:04d}-{_last_part(key)}"


def reader_prefix(name: str) -> str:
    """The folder of a registered reader."""
    return f"{READERS}{name}/"


def reader_key(name: str, position: int) -> str:
    """The name that says how far a registered reader has got."""
    return f"{reader_prefix(name)}{Lsn(position).hex16}"


def replay_prefix(stream: str) -> str:
    """The folder of a stream's replays."""
    return f"{REPLAYS}{stream}/"


def position_of(key: str) -> Lsn:
    """The position with which a key's last part begins; raises SegmentCorrupt."""
    match = _POSITION.match(_last_part(key))
    if match is None:
        raise _strange(key)
    return Lsn.from_hex16(match[1])


def range_of(key: str) -> tuple[Lsn, Lsn]:
    """Start and end of a merged segment, from its name; raises SegmentCorrupt."""
    match = _RANGE.fullmatch(_last_part(key))
    if match is None:
        raise _strange(key)
    return Lsn.from_hex16(match[1]), Lsn.from_hex16(match[2])


_BASE: Final = re.compile(rf"{BASES}(\d{{1,10}})/([0-9A-F]{{16}})/")
_POSITION: Final = re.compile(r"([0-9A-F]{16})(?:[-.]|$)")
_RANGE: Final = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})\.arrow")


def _last_part(key: str) -> str:
    return key.rsplit("/", 1)[-1]


def _strange(key: str) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"the log holds an object with a strange name: {key}",
        hint="nothing but tailrace may write there: take it away",
    )
