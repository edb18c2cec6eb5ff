"""Which version of each table's shape is in force, frame by frame.

Postgres sends a Relation frame before the first row of a table on a connection and again after
each change of its shape. A segment must decode alone, so its header repeats the versions that were
in force when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import SegmentCorrupt
from tailrace.log.header import RelationUse
from tailrace.log.offsets import ChangeOffsets
from tailrace.model import NamedType, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tailrace.postgres.integers import steps
from tailrace.postgres.pgoutput import Tag, parse_relation, parse_truncate, parse_type

Describe: TypeAlias = Callable[[Sequence[Relation]], Sequence[Relation]]
"""Asks the source's catalog for what Relation frames do not say; the same relations come back, in
the same order, with all that is known of them."""

_RELATION_BYTES_MIN = 10
_ROW_BYTES_MIN = 8
_TYPE_BYTES_MIN = 7


@dataclass(frozen=True, slots=True)
class Version:
    """A table's shape: the Relation frame as received, and what is known of it."""

    frame: bytes
    relation: Relation


@dataclass(frozen=True, slots=True)
class Followed:
    """The versions that a run of frames uses, and those in force after it, by oid."""

    uses: tuple[RelationUse, ...]
    in_force: Mapping[int, Version]


class RelationsInForce:
    """Follows the Relation frames of one connection."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._in_force: Mapping[int, Version] = {}
        self._known: dict[bytes, Relation] = {}

    def follow(self, frames: Frames, offsets: ChangeOffsets) -> Followed:
        """What these frames use. Nothing moves until `accept`, so a put that failed can be tried
        again.
        """
        asked = {frame for frame in relation_frames(frames).values() if self._is_open(frame)}
        if asked:
            self._learn(asked, _named_types(frames))
        return follow(frames, offsets, in_force=self._in_force, known=self._known)

    def accept(self, followed: Followed) -> None:
        """The frames are stored: go on after them."""
        self._in_force = followed.in_force

    def _is_open(self, frame: bytes) -> bool:
        """Whether the catalog has to be asked. With the whole old row sent, a frame does not say
        what the key is: it comes again, the same, when that has changed.
        """
        known = self._known.get(frame)
        return known is None or known.identity is ReplicaIdentity.FULL

    def _learn(self, asked: set[bytes], types: Mapping[int, NamedType]) -> None:
        frames = sorted(asked)
        relations = [_with_types(parse_relation(frame), types) for frame in frames]
        self._known.update(zip(frames, self._describe(relations), strict=True))


def follow(
    frames: Frames,
    offsets: ChangeOffsets,
    *,
    in_force: Mapping[int, Version],
    known: Mapping[bytes, Relation],
) -> Followed:
    """The versions that these frames' rows are decoded with, ordered by oid and offset."""
    news: dict[int, list[tuple[int, Version]]] = {}
    for place, frame in relation_frames(frames).items():
        relation = known[frame] if frame in known else parse_relation(frame)
        news.setdefault(relation.oid, []).append((place, Version(frame, relation)))
    uses = []
    for oid, places in rows_by_table(frames):
        versions = [in_force.get(oid), *(version for _, version in news.get(oid, ()))]
        begins = [place for place, _ in news.get(oid, ())]
        cuts = np.searchsorted(places, begins)
        for number, (version, rows) in enumerate(
            zip(versions, np.split(places, cuts), strict=True)
        ):
            if not len(rows):
                continue
            if version is None:
                raise SegmentCorrupt(f"rows of table {oid} came before its relation frame")
            since = offsets.at(int(rows[0]))
            uses.append(
                RelationUse(version.frame, version.relation, since, len(rows), initial=number == 0)
            )
    latest = {oid: versions[-1][1] for oid, versions in news.items()}
    return Followed(join_uses([uses]), {**in_force, **latest})


def join_uses(groups: Iterable[Sequence[RelationUse]]) -> tuple[RelationUse, ...]:
    """The uses of several runs, one after the other, as those of one, ordered by oid and offset.

    Neighbours of the same version are one use. Only a table's first use can be an initial one.
    """
    joined: dict[int, list[RelationUse]] = {}
    for group in groups:
        for use in sorted(group, key=lambda use: use.since):
            uses = joined.setdefault(use.relation.oid, [])
            if uses and (uses[-1].frame, uses[-1].relation) == (use.frame, use.relation):
                total = uses[-1].change_count + use.change_count
                uses[-1] = replace(uses[-1], change_count=total)
            else:
                uses.append(replace(use, initial=use.initial and not uses))
    return tuple(use for oid in sorted(joined) for use in joined[oid])


def relation_frames(frames: Frames) -> dict[int, bytes]:
    """The Relation frames by their place, in order."""
    places = frames.frames_of(Tag.RELATION, size=_RELATION_BYTES_MIN)
    return {place: frames.frame(place) for place in places.tolist()}


def rows_by_table(frames: Frames) -> list[tuple[int, NDArray[np.intp]]]:
    """For each table, by oid, the frames that change it, in order."""
    rows = frames.frames_of(Tag.INSERT, Tag.UPDATE, Tag.DELETE, size=_ROW_BYTES_MIN)
    oids = frames.integers(rows, 1, ">u4")
    truncates = [
        (oid, place)
        for place in np.flatnonzero(frames.tags == Tag.TRUNCATE).tolist()
        for oid in parse_truncate(frames.frame(place))
    ]
    if truncates:
        oids = np.concatenate([oids, [oid for oid, _ in truncates]])
        rows = np.concatenate([rows, [place for _, place in truncates]])
        in_order = np.argsort(rows, kind="stable")
        oids, rows = oids[in_order], rows[in_order]
    if len(oids) and (oids == oids[0]).all():
        return [(int(oids[0]), rows)]
    # Stable, and quick on what comes in runs of one table.
    by_table = np.argsort(oids, kind="stable")
    oids, rows = oids[by_table], rows[by_table]
    first = steps(oids, since=-1).nonzero()[0]
    return list(zip(oids[first].tolist(), np.split(rows, first[1:]), strict=False))


def _named_types(frames: Frames) -> dict[int, NamedType]:
    """What the Type frames say, by oid.

    Postgres writes a domain's oid beside the name of its base type, as it was when the row was
    written (logicalrep_write_typ in proto.c); only the catalog has the typmod.
    """
    types = {}
    for place in frames.frames_of(Tag.TYPE, size=_TYPE_BYTES_MIN).tolist():
        given = parse_type(frames.frame(place))
        is_built_in = given.schema == "pg_catalog" and given.name.upper() in PgType.__members__
        base_oid = PgType[given.name.upper()].value if is_built_in else 0
        types[given.oid] = NamedType(given.oid, f"{given.schema}.{given.name}", base_oid)
    return types


def _with_types(relation: Relation, types: Mapping[int, NamedType]) -> Relation:
    used = sorted({column.type_oid for column in relation.columns} & types.keys())
    return replace(relation, type_names=tuple(types[oid] for oid in used))
