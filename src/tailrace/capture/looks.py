"""The last look at each published table, and the shapes in which its rows came since.

Both are kept beside the log. A shape is kept before the first row in it is durable, unless the last
look shows it. So whoever looks next knows every shape that there was, also those that the catalog
has forgotten.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator

from tailrace.errors import LogError
from tailrace.log import layout
from tailrace.log.marks import raise_mark
from tailrace.model import Relation
from tailrace.postgres.pgoutput import parse_relation, relation_frame
from tailrace.postgres.standing import Standing
from tailrace.storage import Store


def last_look(store: Store, oid: int) -> Standing | None:
    """How the table stood when it was last looked at; None if it was never published."""
    entries = store.list(layout.table_prefix(oid))
    if not entries:
        return None
    try:
        return Standing.from_dict(json.loads(store.get(entries[-1].key)))
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(f"{entries[-1].key} cannot be read") from error


def keep_look(store: Store, look: Standing) -> None:
    """Make this the last look."""
    entries = store.list(layout.table_prefix(look.oid))
    number = int(entries[-1].key.rsplit("/", 1)[-1].split(".")[0]) + 1 if entries else 0
    raise_mark(store, layout.table_key(look.oid, number), json.dumps(look.to_dict()).encode())


def every_look(store: Store) -> Iterator[Standing]:
    """The last look at each table that was ever published."""
    for oid in sorted({int(entry.key.split("/")[1]) for entry in store.list(layout.TABLES)}):
        look = last_look(store, oid)
        if look is not None:
            yield look


def keep_shapes(store: Store, relations: Iterable[Relation]) -> list[Relation]:
    """Keep those of the shapes that are new, durable on return. Those that are no published table's
    are returned.
    """
    others = []
    for relation in relations:
        look = last_look(store, relation.oid)
        if look is None:
            others.append(relation)
            continue
        if not _is_shown(look, relation):
            key = layout.shape_key(relation.oid, secrets.token_hex(8))
            store.put_new(key, relation_frame(relation))
    return others


def _is_shown(look: Standing, relation: Relation) -> bool:
    shown, came = (
        [(column.name, column.type_oid) for column in each.columns] for each in (look, relation)
    )
    return look.name == relation.qualified and shown == came


def kept_shapes(store: Store) -> dict[int, dict[str, Relation]]:
    """By table and by name of the object, all that nobody has judged yet."""
    found: dict[int, dict[str, Relation]] = {}
    for entry in store.list(layout.SHAPES):
        relation = parse_relation(store.get(entry.key))
        found.setdefault(relation.oid, {})[entry.key] = relation
    return found
