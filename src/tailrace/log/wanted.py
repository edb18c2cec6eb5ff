"""Marks that ask for a new base of a table: whatever base stands before one is not the whole table.

Postgres does not stream everything that changes a table. A partition that is attached brings rows
along, one that is detached or truncated takes them away; a table that was out of the publication
for a while has missed what happened meanwhile. Whoever finds out puts a mark at a position that is
not before the event, and the table is whole again from the first base taken after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tailrace.errors import SegmentCorrupt
from tailrace.log import layout
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
    base stands.
    """
    highest: dict[int, str] = {}
    for entry in store.list(layout.WANTED):
        oid = int(entry.key.split("/")[1])
        if layout.position_of(entry.key) > newest.get(oid, Lsn(0)):
            highest[oid] = entry.key
    found = {}
    for oid, key in highest.items():
        # One that vanishes while being read is outdone or answered: the next look shows it.
        with suppress(ObjectMissing):
            found[oid] = WantedBase(oid, layout.position_of(key), _reason(store, key))
    return found


def _reason(store: Store, key: str) -> str:
    try:
        return str(json.loads(store.get(key))["reason"])
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read") from error
