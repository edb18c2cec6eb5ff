"""What a segment says about itself, so that it can be found, planned and decoded alone.

The header is JSON in the Arrow schema's metadata, at the head of the file: a reader that plans
needs the first kilobytes only. The byte format is written down in docs/log-format.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

from tailrace.errors import LogError, SegmentCorrupt
from tailrace.model import Lsn, NamedType, Offset, Relation
from tailrace.postgres.pgoutput import parse_relation

FORMAT_VERSION: Final = 1

Note: TypeAlias = Mapping[str, object]
"""What whoever wrote a segment must know again when the log goes on after it."""

DRAINED: Final = "drained"
"""In a note: the snapshot up to which the buffers are in the log, as of the segment's end."""


class Kind(StrEnum):
    """What an Arrow file of the log is."""

    GENESIS = "genesis"
    SEGMENT = "segment"
    MERGED = "merged"
    PART = "part"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which Postgres the log is made from. A log never mixes two."""

    system_id: str
    timeline: int
    era: int = 0


@dataclass(frozen=True, slots=True)
class RelationUse:
    """A version of a table's shape that rows of this segment are decoded with.

    `frame` is the Relation frame as received; `relation` adds what the catalog said. `since` is the
    offset of the first frame it applies to here, `change_count` how many changes it applies to.
    `initial` is true if the table's rows are decoded with it before any Relation frame comes.
    """

    frame: bytes
    relation: Relation
    since: Offset
    change_count: int
    initial: bool


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a transaction too big for a segment."""

    key: str
    first_ordinal: int
    change_count: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A segment covers every transaction with `start < end_lsn <= end`, whole, in commit order.

    If it has parts, it covers exactly one transaction, `xid`: first the frames of the parts, then
    its own.
    """

    kind: Kind
    source: SourceIdentity
    writer: str
    start: Lsn
    end: Lsn
    frame_count: int = 0
    transaction_count: int = 0
    change_count: int = 0
    data_bytes: int = 0
    first: Offset | None = None
    last: Offset | None = None
    commit_ts_us_min: int = 0
    commit_ts_us_max: int = 0
    relations: tuple[RelationUse, ...] = ()
    parts: tuple[Part, ...] = ()
    xid: int = 0
    note: Note | None = None

    @property
    def initial(self) -> dict[int, Relation]:
        """The relations in force at the start, by oid."""
        return {use.relation.oid: use.relation for use in self.relations if use.initial}

    @property
    def versions(self) -> dict[bytes, Relation]:
        """All relations used, by their frame."""
        return {use.frame: use.relation for use in self.relations}

    def to_json(self) -> str:
        """The text as stored; both checksums of a segment are over exactly these bytes."""
        value = {
            "format": FORMAT_VERSION,
            "kind": self.kind.value,
            "system_id": self.source.system_id,
            "timeline": self.source.timeline,
            "era": self.source.era,
            "writer": self.writer,
            "start": int(self.start),
            "end": int(self.end),
            "frames": self.frame_count,
            "transactions": self.transaction_count,
            "changes": self.change_count,
            "bytes": self.data_bytes,
            "first": _offset_to_json(self.first),
            "last": _offset_to_json(self.last),
            "commit_ts_us": [self.commit_ts_us_min, self.commit_ts_us_max],
            "relations": [_use_to_json(use) for use in self.relations],
            "parts": [[p.key, p.first_ordinal, p.change_count, p.data_bytes] for p in self.parts],
            "xid": self.xid,
            "note": self.note,
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote; raises SegmentCorrupt, or LogError for another format."""
        try:
            value = json.loads(text)
            if value["format"] != FORMAT_VERSION:
                # Not damage: recovery must not put such a segment aside.
                raise LogError(
                    f"the log has format {value['format']}, this version reads {FORMAT_VERSION}",
                    hint="use the version of tailrace that wrote this log, or a newer one",
                )
            return cls(
                kind=Kind(value["kind"]),
                source=SourceIdentity(value["system_id"], value["timeline"], value["era"]),
                writer=value["writer"],
                start=Lsn(value["start"]),
                end=Lsn(value["end"]),
                frame_count=value["frames"],
                transaction_count=value["transactions"],
                change_count=value["changes"],
                data_bytes=value["bytes"],
                first=_offset_from_json(value["first"]),
                last=_offset_from_json(value["last"]),
                commit_ts_us_min=value["commit_ts_us"][0],
                commit_ts_us_max=value["commit_ts_us"][1],
                relations=tuple(_use_from_json(use) for use in value["relations"]),
                parts=tuple(Part(*part) for part in value["parts"]),
                xid=value["xid"],
                note=value["note"],
            )
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise SegmentCorrupt("a segment's header cannot be read") from error


def _offset_to_json(offset: Offset | None) -> list[int] | None:
    return None if offset is None else [int(offset.commit_lsn), offset.ordinal]


def _offset_from_json(value: list[int] | None) -> Offset | None:
    return None if value is None else Offset(Lsn(value[0]), value[1])


def _use_to_json(use: RelationUse) -> dict[str, object]:
    return {
        **relation_to_json(use.frame, use.relation),
        "since": _offset_to_json(use.since),
        "changes": use.change_count,
        "initial": use.initial,
    }


def _use_from_json(value: dict[str, Any]) -> RelationUse:
    frame, relation = relation_from_json(value)
    since = Offset(Lsn(value["since"][0]), value["since"][1])
    return RelationUse(frame, relation, since, value["changes"], value["initial"])


def relation_to_json(frame: bytes, relation: Relation) -> dict[str, object]:
    """A table's shape: the frame, and what the catalog added to it."""
    return {
        "frame": base64.b64encode(frame).decode(),
        "key": list(relation.key),
        "types": [_type_to_json(known) for known in relation.type_names],
        **({"keyless": True} if relation.is_keyless else {}),
    }


def relation_from_json(value: dict[str, Any]) -> tuple[bytes, Relation]:
    """Read what `relation_to_json` gave; raises ValueError, KeyError, TypeError."""
    frame = base64.b64decode(value["frame"], validate=True)
    relation = replace(
        parse_relation(frame),
        key=tuple(value["key"]),
        type_names=tuple(NamedType(*known) for known in value["types"]),
        is_keyless=value.get("keyless", False),
    )
    return frame, relation


def _type_to_json(known: NamedType) -> list[object]:
    return list(known) if known.base_oid else [known.oid, known.name]
