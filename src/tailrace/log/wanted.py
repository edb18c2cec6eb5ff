"""Marks that ask for a new base of a table: whatever base stands before one is not the whole table.

Postgres does not stream everything that changes a table. A partition that is attached brings rows
along, one that is detached or truncated takes them away; a table that was out of the publication
for a while has missed what happened meanwhile. Whoever finds out puts a mark at a position that is
not before the event, and the table is whole again from the first base that is read from Postgres
after it; folding an older one over the mark does not make it whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tailrace.errors import SegmentCorrupt
from tailrace.log import layout
from tailrace.log.bases import positions_after, read_base
from tailrace.log.gone import gone_tables
from tailrace.log.marks import raise_mark
from tailrace.model import Lsn
from tailrace.storage import ObjectMissing, Store

SLOT_LOST: Final = "the slot was lost"
"""The reason that streams tell as a state of their own. It stays until a base answers it."""


@dataclass(frozen=True, slots=True)
class WantedBase:
    """A base of the table at or after `position` is wanted, because of `reason`."""

    oid: int
    position: Lsn
    reason: str


def want_base(store: Store, wanted: WantedBase) -> None:
    """Put the mark, durable on return. Of several marks of a table the highest counts."""
    if _waits_for_slot(store, wanted.oid):
        wanted = replace(wanted, reason=SLOT_LOST)
    data = json.dumps({"reason": wanted.reason}).encode()
    raise_mark(store, layout.wanted_key(wanted.oid, wanted.position), data)


def wanted_bases(store: Store, newest: Mapping[int, Lsn]) -> dict[int, WantedBase]:
    """The marks that no base answers yet, by oid; `newest` holds where each table's newest complete
    base stands. One that was folded from an older base answers no more than that did.
    """
    marks = _marks(store, layout.WANTED)
    return {mark.oid: mark for mark in marks if not _is_answered(store, mark, newest.get(mark.oid))}


def wanted_positions(store: Store) -> list[Lsn]:
    """Where the marks stand, answered ones too."""
    return [layout.position_of(entry.key) for entry in store.list(layout.WANTED)]


def lost_with_slot(store: Store) -> dict[int, Lsn]:
    """By oid, the tables of which a lost slot has taken changes along, and from which position on a
    base has them again; also those that have such a base by now.
    """
    gone = gone_tables(store)
    marks = [mark for mark in _marks(store, layout.WANTED) if mark.reason == SLOT_LOST]
    return {mark.oid: mark.position for mark in marks if mark.oid not in gone}


def _marks(store: Store, prefix: str) -> Iterator[WantedBase]:
    """The highest of each table."""
    highest = {int(entry.key.split("/")[1]): entry.key for entry in store.list(prefix)}
    for oid, key in highest.items():
        try:
            yield WantedBase(oid, layout.position_of(key), _reason(store, key))
        except ObjectMissing:
            # A higher one is there before it goes; nobody may take the table for one without.
            yield from _marks(store, f"{layout.WANTED}{oid}/")


def _waits_for_slot(store: Store, oid: int) -> bool:
    """Whether a lost slot is why the table waits."""
    newest = max(positions_after(store, oid, Lsn(0)), default=None)
    return any(
        mark.reason == SLOT_LOST and not _is_answered(store, mark, newest)
        for mark in _marks(store, f"{layout.WANTED}{oid}/")
    )


def _is_answered(store: Store, mark: WantedBase, newest: Lsn | None) -> bool:
    """Whether the rows of the table's newest base were read from Postgres behind the mark. A base
    that vanishes while being read is outdone: the next look shows by what.
    """
    if newest is None:
        return False
    try:
        return read_base(store, mark.oid, newest).generation >= mark.position
    except ObjectMissing:
        return True


def _reason(store: Store, key: str) -> str:
    try:
        return str(json.loads(store.get(key))["reason"])
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read") from error
