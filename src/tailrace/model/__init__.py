"""Values: positions, offsets, relations, types. Standard library only."""

from tailrace.model.change import META_COLUMNS, Op, Origin
from tailrace.model.lsn import Lsn
from tailrace.model.offset import ORDINAL_MAX, ORIGIN, Offset
from tailrace.model.pgtype import NumericSize, PgType, decimal_size, numeric_size
from tailrace.model.relation import Column, NamedType, Relation, ReplicaIdentity

__all__ = [
    "META_COLUMNS",
    "ORDINAL_MAX",
    "ORIGIN",
    "Column",
    "Lsn",
    "NamedType",
    "NumericSize",
    "Offset",
    "Op",
    "Origin",
    "PgType",
    "Relation",
    "ReplicaIdentity",
    "decimal_size",
    "numeric_size",
]
