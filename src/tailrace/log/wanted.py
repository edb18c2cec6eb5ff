"""Marks that ask for a new base of a table: whatever base stands before one is not the whole table.

Postgres does not stream everything that changes a table. A partition that is attached brings rows
along, one that is detached or truncated takes them away; a table that was out of the publication
for a while has missed what happened meanwhile. Whoever finds out puts a mark at a position that is
not before the event, and the table is whole again from the first base that is read from Postgres
after it; folding an older one over the mark does not make it whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tailrace.errors import SegmentCorrupt
from tailrace.log import layout
from tailrace.log.bases import read_base
from tailrace.log.marks import raise_mark
from tailrace.model import Lsn
from tailrace.storage import ObjectMissing, Store


@dataclass(frozen=True, slots=True)
class WantedBase:
    """A base of the table at or after `position` is wanted, because of `reason`."""

    oid: int
    position: Lsn
    reason: str


def want_base(store: Store, wanted: WantedBase) -> None:
    """Put the mark, durable on return. Of several marks of a table the highest counts."""
    data = json.dumps({"reason": wanted.reason}).encode()
    raise_mark(store, layout.wanted_key(wanted.oid, wanted.position), data)


def wanted_bases(store: Store, newest: Mapping[int, Lsn]) -> dict[int, WantedBase]:
    """The marks that no base answers yet, by oid; `newest` holds where each table's newest complete
    base stands. One that was folded from an older base answers no more than that did.
    """
    highest = {int(entry.key.split("/")[1]): entry.key for entry in store.list(layout.WANTED)}
    found = {}
    for oid, key in highest.items():
        # What vanishes while being read is outdone: the next look shows it.
        with suppress(ObjectMissing):
            wanted = WantedBase(oid, layout.position_of(key), _reason(store, key))
            if oid not in newest or wanted.position > _read_at(store, oid, newest[oid]):
                found[oid] = wanted
    return found


def _read_at(store: Store, oid: int, newest: Lsn) -> Lsn:
    """When the rows of the table's newest base were read from Postgres."""
    return read_base(store, oid, newest).generation


def _reason(store: Store, key: str) -> str:
    try:
        return str(json.loads(store.get(key))["reason"])
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read") from error
