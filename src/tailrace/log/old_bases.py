"""Bases that nobody needs any more: outdone by a newer one, of a table that is gone, or never
completed.

A base is deleted a while after it was outdone, so that whoever reads it at that time is seldom
disturbed. The objects that a living base names stay, wherever they lie: a fold names parts of the
base that it was made from.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from tailrace.log import layout
from tailrace.log.bases import parts_named
from tailrace.model import Lsn
from tailrace.storage import Entry, Store

OUTDONE_AGE_S: Final = 6 * 3600.0
"""How long a base stays after a newer one of its table was completed, or after it was completed
itself if its table is not captured any more: then no newer one is folded from it.
"""

UNFINISHED_AGE_S: Final = 72 * 3600.0
"""A part of a base that was never completed goes when it is this old."""


def old_base_keys(
    store: Store, *, now_s: float, tables: Container[int] | None = None
) -> Iterator[str]:
    """The objects that can go; `tables` are those, by oid, whose newest base stays for ever."""
    entries: dict[tuple[int, Lsn], list[Entry]] = {}
    for entry in store.list(layout.BASES):
        entries.setdefault(layout.base_of(entry.key), []).append(entry)
    completed = {
        base: entry.modified_s
        for base, found in entries.items()
        for entry in found
        if entry.key == layout.base_key(*base)
    }
    living = {base for base in completed if not _is_outdone(base, completed, tables, now_s)}
    named = parts_named(store, living)
    for base, found in entries.items():
        if base in living:
            continue
        for entry in found:
            is_old = base in completed or entry.modified_s < now_s - UNFINISHED_AGE_S
            if is_old and entry.key not in named:
                yield entry.key


def _is_outdone(
    base: tuple[int, Lsn],
    completed: dict[tuple[int, Lsn], float],
    tables: Container[int] | None,
    now_s: float,
) -> bool:
    oid, position = base
    newer = [at for (other, when), at in completed.items() if other == oid and when > position]
    if newer:
        return min(newer) < now_s - OUTDONE_AGE_S
    is_gone = tables is not None and oid not in tables
    return is_gone and completed[base] < now_s - OUTDONE_AGE_S
