"""Partitions from which rows have come, but which no look at the catalog has shown.

Rows of a partition come as those of its root. When it is dropped or detached, they are gone without
being streamed; a look finds that out only if an earlier one has seen the partition. But Postgres
sends a Relation frame of the partition, too, before its first row (maybe_send_schema in
pgoutput.c). So it is known which partitions there have been, and kept, before any row of theirs is,
until the next look.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from tailrace.capture.looks import every_look
from tailrace.log import layout
from tailrace.model import Relation
from tailrace.postgres.pgoutput import parse_relation, relation_frame
from tailrace.postgres.standing import Standing
from tailrace.storage import Store


class Strays:
    """Keeps them, for one connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shown: set[int] = set()

    def keep(self, relations: Iterable[Relation]) -> None:
        """Keep those that no look has shown, durable on return."""
        unknown = [relation for relation in relations if relation.oid not in self._shown]
        if unknown:
            self._shown.update(*(look.leaf_oids for look in every_look(self._store)))
        for relation in unknown:
            if relation.oid not in self._shown:
                key = layout.stray_key(relation.oid, secrets.token_hex(8))
                self._store.put_new(key, relation_frame(relation))
                self._shown.add(relation.oid)


def kept_strays(store: Store) -> dict[str, Relation]:
    """By name of the object, all that nobody has judged yet."""
    return {entry.key: parse_relation(store.get(entry.key)) for entry in store.list(layout.STRAYS)}


def came_and_went(
    before: Standing, now: Standing, strays: Iterable[Relation], between: Iterable[Relation]
) -> str:
    """Which of the partitions was one of this table's between two looks, in words; empty if none.

    `strays` are those that no table has now. A frame does not say whose partition it is; but that
    has had the columns of its table, in any order.
    """
    if not now.is_partitioned:
        return ""
    shapes = [_columns(before), _columns(now), *map(_columns, between)]
    for stray in strays:
        if stray.oid not in before.leaf_oids and _columns(stray) in shapes:
            return f"partition {stray.qualified} came and went"
    return ""


def _columns(table: Standing | Relation) -> set[tuple[str, int]]:
    return {(column.name, column.type_oid) for column in table.columns}
