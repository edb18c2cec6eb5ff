"""Which version of its table's shape each change was written under.

Invariant: a row is read with the Relation in force when Postgres sent it: the last Relation frame
of its table before it, else the version that was in force when these frames began. The catalog of
today is never asked.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tailrace.decode.changes import Changes
from tailrace.decode.corrupt import corrupt
from tailrace.errors import SegmentCorrupt
from tailrace.model import Relation
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation


@dataclass(frozen=True, slots=True)
class Run:
    """Successive changes of one table under one shape; `places` are indices into the changes,
    rising.
    """

    relation: Relation
    places: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Version:
    """In force from `frame` on; -1 is before the first."""

    frame: int
    relation: Relation | None


def split_into_runs(
    frames: Frames,
    tags: NDArray[np.uint8],
    changes: Changes,
    *,
    initial: Mapping[int, Relation],
    versions: Mapping[bytes, Relation],
    tables: Container[str] | None,
) -> list[Run]:
    """The changes by table and shape, ordered by their first change; only `tables`, if given."""
    history = _read_history(frames, tags, versions)
    runs: list[Run] = []
    for oid, places in _by_table(changes.oid):
        known = [_Version(-1, initial.get(oid)), *history.get(oid, ())]
        for relation, part in _by_shape(known, changes.frame, places):
            if relation is None:
                frame = int(changes.frame[part[0]])
                raise corrupt(frames, frame, f"a change of the unknown table {oid}")
            if tables is None or relation.qualified in tables:
                runs.append(Run(relation, part))
    return sorted(runs, key=lambda run: int(run.places[0]))


def _read_history(
    frames: Frames, tags: NDArray[np.uint8], versions: Mapping[bytes, Relation]
) -> dict[int, list[_Version]]:
    parsed: dict[bytes, Relation] = {}
    history: dict[int, list[_Version]] = {}
    for index in np.flatnonzero(tags == Tag.RELATION).tolist():
        frame = frames.frame(index)
        if frame not in parsed:
            parsed[frame] = versions[frame] if frame in versions else _parse(frames, index, frame)
        relation = parsed[frame]
        history.setdefault(relation.oid, []).append(_Version(index, relation))
    return history


def _parse(frames: Frames, index: int, frame: bytes) -> Relation:
    try:
        return parse_relation(frame)
    except SegmentCorrupt as error:
        raise corrupt(frames, index, str(error)) from error


def _by_table(oids: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    if (oids == oids[0]).all():
        yield int(oids[0]), np.arange(len(oids))
        return
    distinct = np.unique(oids)
    # A stable sort of small numbers is a radix sort: linear, where sorting the oids would not be.
    numbers = np.searchsorted(distinct, oids).astype(np.min_scalar_type(len(distinct)))
    order = np.argsort(numbers, kind="stable")
    bounds = np.cumsum(np.bincount(numbers, minlength=len(distinct)))[:-1]
    yield from zip(distinct.tolist(), np.split(order, bounds), strict=True)


def _by_shape(
    known: list[_Version], frame: NDArray[np.intp], places: NDArray[np.intp]
) -> Iterator[tuple[Relation | None, NDArray[np.intp]]]:
    """Cut where the shape changes, which a frame that repeats the shape in force does not do."""
    bounds = np.searchsorted(frame[places], [version.frame for version in known[1:]])
    parts = zip(known, np.split(places, bounds), strict=True)
    written = [(version.relation, part) for version, part in parts if len(part)]
    for relation, group in groupby(written, key=itemgetter(0)):
        yield relation, np.concatenate([part for _, part in group])
