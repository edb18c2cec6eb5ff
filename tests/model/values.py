"""Hypothesis strategies for the values that every layer shares."""

from __future__ import annotations

from hypothesis import strategies as st

from tailrace.model import ORDINAL_MAX, Column, Lsn, Offset, Relation, ReplicaIdentity

# Postgres ends a name at its zero byte, and has no lone surrogates.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
OIDS = st.integers(0, (1 << 32) - 1)


def lsns() -> st.SearchStrategy[Lsn]:
    """Any position."""
    return st.integers(0, (1 << 63) - 1).map(Lsn)


def offsets() -> st.SearchStrategy[Offset]:
    """Any offset, often a whole one."""
    ordinals = st.integers(0, ORDINAL_MAX) | st.integers(0, 9) | st.just(ORDINAL_MAX)
    return st.builds(Offset, lsns(), ordinals)


def columns() -> st.SearchStrategy[Column]:
    """Any column that a Relation frame can hold."""
    typmods = st.integers(-(1 << 31), (1 << 31) - 1)
    return st.builds(Column, NAMES, OIDS, typmods, st.booleans())


def relations() -> st.SearchStrategy[Relation]:
    """Any table, as its Relation frame shows it; the catalog has said nothing yet."""
    return st.builds(
        _relation,
        OIDS,
        NAMES.filter(bool),
        NAMES,
        st.sampled_from(ReplicaIdentity),
        st.lists(columns(), max_size=5).map(tuple),
    )


def _relation(
    oid: int, schema: str, name: str, identity: ReplicaIdentity, made: tuple[Column, ...]
) -> Relation:
    key = tuple(column.name for column in made if column.in_identity)
    return Relation(oid, schema, name, identity, made, key)
