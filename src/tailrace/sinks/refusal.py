"""Tables that cannot be delivered, told apart by their shape alone, before a row is written."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.errors import SchemaError
from tailrace.model import META_COLUMNS, Relation, ReplicaIdentity


def require_names(relation: Relation, *, also: Iterable[str] = ()) -> None:
    """Refuse columns that could not be told from each other, or from those that Tailrace adds:
    those of a change, and `also`.
    """
    taken = {name.lower(): name for name in (*META_COLUMNS, *also)}
    for name in relation.column_names:
        if name.lower() in taken:
            raise SchemaError(
                f"table {relation.qualified} has a column {name} beside {taken[name.lower()]}",
                hint="names that differ only in case, and the names of Tailrace's own columns,"
                " cannot be delivered; rename the column or leave it out of the stream",
            )
        taken[name.lower()] = name


def require_key(relation: Relation) -> None:
    """Refuse a table whose rows cannot be told apart by what Postgres sends of an old row."""
    if not relation.key or relation.is_keyless:
        raise SchemaError(
            f"table {relation.qualified} has no key, so its rows cannot be upserted",
            hint="give it a primary key, or the stream a `key`, or deliver it in append mode",
        )
    if not set(relation.column_names).issuperset(relation.key):
        raise SchemaError(
            f"the key of {relation.qualified} is not among the columns of the stream",
            hint=f"add {', '.join(relation.key)} to the columns of the stream",
        )
    sent = {column.name for column in relation.columns if column.in_identity}
    if relation.identity is not ReplicaIdentity.NOTHING and not sent.issuperset(relation.key):
        raise SchemaError(
            f"the replica identity of {relation.qualified} does not cover its key",
            hint="use REPLICA IDENTITY DEFAULT or FULL, or deliver the table in append mode",
        )
