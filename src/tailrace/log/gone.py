"""Tables that have a base and are not captured any more, as retention has last seen it.

Their bases are not folded any further, so they grow old, and go. A table that comes back is as any
other again: what it has missed is for whoever captures it to say.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress

from tailrace.log import layout
from tailrace.storage import ObjectExists, Store


def gone_tables(store: Store) -> set[int]:
    """By oid."""
    return {layout.gone_table(entry.key) for entry in store.list(layout.GONE)}


def note_gone(store: Store, tables: Set[int]) -> None:
    """Let these be the ones, and no others."""
    noted = gone_tables(store)
    for oid in tables - noted:
        with suppress(ObjectExists):
            store.put_new(layout.gone_key(oid), b"")
    store.delete(layout.gone_key(oid) for oid in noted - tables)
