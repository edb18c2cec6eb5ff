"""Bases: whole tables as of one position, kept beside the changes.

A table's state is its base and the changes that end after the base's position. Parts are put
first; `base.json` names them and is put last, so a base is complete or does not exist. Of several
complete ones the newest counts. Nothing is ever put under a name that another try has used: its
writer tells whether a part that is there already is our own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tailrace.errors import LogError, SegmentCorrupt
from tailrace.log import base_part, layout
from tailrace.log.base_part import BaseIdentity, PartHeader, data_size
from tailrace.log.header import (
    FORMAT_VERSION,
    SourceIdentity,
    relation_from_json,
    relation_to_json,
)
from tailrace.model import Lsn, Relation
from tailrace.storage import Entry, ObjectExists, ObjectMissing, Store


class BaseTaken(LogError):
    """Another has put an object of this name: our base needs another position."""

    retry = True


class BaseOrigin(StrEnum):
    """How a base came about."""

    SNAPSHOT = "snapshot"
    COMPACTION = "compaction"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class BasePart:
    """One piece of a base's rows."""

    key: str
    row_count: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class Base:
    """A table as of `position`: changes that end at or before it are in it, later ones apply.

    `frame` is a Relation frame of the table's shape at that position, so that its rows are decoded
    as streamed ones are; `relation` adds what the catalog said. The rows are those of the parts, in
    their order. `folded_from` is the position of the base that was read from Postgres, if this one
    was folded from it and the changes since.
    """

    source: SourceIdentity
    relation: Relation
    frame: bytes
    position: Lsn
    taken_ts_us: int
    origin: BaseOrigin
    parts: tuple[BasePart, ...] = ()
    folded_from: Lsn | None = None

    @property
    def generation(self) -> Lsn:
        """When the table was last read: who has this generation has nothing to read anew, because
        a fold says the same as the changes.
        """
        return self.position if self.folded_from is None else self.folded_from

    @property
    def row_count(self) -> int:
        """The rows of all parts."""
        return sum(part.row_count for part in self.parts)

    @property
    def key(self) -> str:
        """The name of the object that makes it complete."""
        return layout.base_key(self.relation.oid, self.position)

    def to_json(self) -> bytes:
        """As stored: the checksum is over the text without it."""
        value: dict[str, object] = {
            "format": FORMAT_VERSION,
            "system_id": self.source.system_id,
            "timeline": self.source.timeline,
            "era": self.source.era,
            **relation_to_json(self.frame, self.relation),
            "position": int(self.position),
            "taken_ts_us": self.taken_ts_us,
            "origin": self.origin.value,
            "parts": [[part.key, part.row_count, part.data_bytes] for part in self.parts],
            "folded_from": None if self.folded_from is None else int(self.folded_from),
        }
        return _dump({**value, "crc32": f"{zlib.crc32(_dump(value)):08x}"})

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> Base:
        """Read what `to_json` wrote under this name; raises SegmentCorrupt, or LogError for another
        format.
        """
        try:
            value = json.loads(data)
            if value["format"] != FORMAT_VERSION:
                raise LogError(
                    f"{key} has format {value['format']}, this version reads {FORMAT_VERSION}",
                    hint="use the version of tailrace that wrote this log, or a newer one",
                )
            frame, relation = relation_from_json(value)
            base = cls(
                source=SourceIdentity(value["system_id"], value["timeline"], value["era"]),
                relation=relation,
                frame=frame,
                position=Lsn(value["position"]),
                taken_ts_us=value["taken_ts_us"],
                origin=BaseOrigin(value["origin"]),
                parts=tuple(BasePart(*part) for part in value["parts"]),
                folded_from=_position(value["folded_from"]),
            )
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise _corrupt(key, "cannot be read") from error
        if data != base.to_json() or key != base.key:
            raise _corrupt(key, "is damaged")
        return base


def put_base_part(
    store: Store, base: BaseIdentity, rows: pa.BinaryArray, *, stretch: int, number: int
) -> BasePart:
    """Put one part, durable on return. One that is there already is taken if it is our own, from an
    earlier try, with the same rows; else BaseTaken.
    """
    header = PartHeader(base, stretch, number, len(rows), data_size(rows))
    try:
        store.put_new(header.key, memoryview(base_part.encode(header, rows)), is_bulk=True)
    except ObjectExists as error:
        found, found_rows = base_part.decode(store.get(header.key), key=header.key)
        if found != header or not found_rows.equals(rows):
            raise _taken(header.key) from error
    return BasePart(header.key, header.row_count, header.data_bytes)


def put_base(store: Store, base: Base) -> None:
    """Make a base complete; its parts are all there. Raises BaseTaken if there is another of the
    same table and position.
    """
    try:
        store.put_new(base.key, base.to_json())
    except ObjectExists as error:
        if store.get(base.key) != base.to_json():
            raise _taken(base.key) from error


def newest_positions(store: Store) -> dict[int, Lsn]:
    """Where each table's newest complete base stands, by oid; told by names alone."""
    newest: dict[int, Lsn] = {}
    for oid, position in _complete(store.list(layout.BASES)):
        newest[oid] = max(newest.get(oid, position), position)
    return newest


def positions_after(store: Store, oid: int, position: Lsn) -> list[Lsn]:
    """Where the complete bases of one table stand that are newer than this one, in order."""
    found = _complete(store.list(f"{layout.BASES}{oid}/"))
    return sorted(other for _, other in found if other > position)


def newest_bases(store: Store) -> dict[int, Base]:
    """Each table's newest complete base, by oid. One that vanishes while being read has been
    outdone: look again.
    """
    while True:
        try:
            return {
                oid: read_base(store, oid, position)
                for oid, position in newest_positions(store).items()
            }
        except ObjectMissing:
            continue


def read_base(store: Store, oid: int, position: Lsn) -> Base:
    """One complete base; raises ObjectMissing, SegmentCorrupt."""
    key = layout.base_key(oid, position)
    return Base.from_json(store.get(key), key=key)


def read_base_part(store: Store, part: BasePart) -> pa.BinaryArray:
    """The rows of a part, checked; raises ObjectMissing, SegmentCorrupt."""
    header, rows = base_part.decode(store.get(part.key), key=part.key)
    if (header.row_count, header.data_bytes) != (part.row_count, part.data_bytes):
        raise _corrupt(part.key, "is not the part that its base names")
    return rows


def delete_unfinished(store: Store, oids: Iterable[int]) -> None:
    """Delete what was left behind below the newest base of these tables by bases that were never
    completed. Should one of them still be completed by a process that wakes up late, it does not
    count, because a newer one does.
    """
    for oid in oids:
        entries = store.list(f"{layout.BASES}{oid}/")
        complete = set(_complete(entries))
        newest = max((position for _, position in complete), default=Lsn(0))
        # Of a base that is outdone and gone a fold may still name parts.
        named = parts_named(store, complete)
        store.delete(
            entry.key
            for entry in entries
            if (base := layout.base_of(entry.key)) not in complete
            and base[1] < newest
            and entry.key not in named
        )


def parts_named(store: Store, bases: Iterable[tuple[int, Lsn]]) -> set[str]:
    """The parts of these complete bases, by table and position, wherever they lie."""
    named: set[str] = set()
    for oid, position in bases:
        with suppress(ObjectMissing):
            named |= {part.key for part in read_base(store, oid, position).parts}
    return named


def _complete(entries: Iterable[Entry]) -> Iterator[tuple[int, Lsn]]:
    """Table and position of the bases whose last object is among these."""
    for entry in entries:
        base = layout.base_of(entry.key)
        if entry.key == layout.base_key(*base):
            yield base


def _position(value: int | None) -> Lsn | None:
    return None if value is None else Lsn(value)


def _dump(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _taken(key: str) -> BaseTaken:
    return BaseTaken(f"{key} was made by another", hint="the table is read again")


def _corrupt(key: str, what: str) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{key} {what}", hint="run `tailrace snapshot` for the table: a new base takes its place"
    )
