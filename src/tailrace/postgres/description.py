"""What the catalog adds to a Relation frame: the primary key, and what its types are.

The catalog shows the tables of now. If a table has moved on since its rows were written, or is
gone, the frame stands alone, but for a key that it cannot say; its types are known by their oids
all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tailrace.model import NamedType, Relation, ReplicaIdentity
from tailrace.postgres.catalog import RelationCatalog, describe_relations
from tailrace.postgres.named_types import read_named_types
from tailrace.postgres.session import Connection


def describe(conn: Connection, relations: Sequence[Relation]) -> list[Relation]:
    """The same relations, each with all that is known of it."""
    catalog = describe_relations(conn, sorted({relation.oid for relation in relations}))
    oids = {column.type_oid for relation in relations for column in relation.columns}
    types = read_named_types(conn, oids)
    return [_described(relation, catalog.get(relation.oid), types) for relation in relations]


def _described(
    relation: Relation, catalog: RelationCatalog | None, types: Mapping[int, NamedType]
) -> Relation:
    streamed = {known.oid: known for known in relation.type_names}
    used = {column.type_oid for column in relation.columns}
    known = {oid: named for oid, named in {**streamed, **types}.items() if oid in used}
    relation = replace(relation, type_names=tuple(known[oid] for oid in sorted(known)))
    if catalog is None:
        return relation
    if not catalog.key:
        is_whole = relation.identity is ReplicaIdentity.FULL
        return replace(relation, is_keyless=is_whole and catalog.is_keyless)
    # A frame flags what old rows come with: by another key they could not be found. If they come
    # whole, it does not say the key, so that of now has to do, even if columns have changed since.
    is_sent = {*catalog.key} <= {each.name for each in relation.columns if each.in_identity}
    is_of_now = catalog.columns == relation.column_names
    is_said = relation.identity is not ReplicaIdentity.FULL
    return (
        replace(relation, key=catalog.key) if is_sent and (is_of_now or not is_said) else relation
    )
