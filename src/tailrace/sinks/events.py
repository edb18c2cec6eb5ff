"""What happens to keys in a batch, in order, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SchemaError
from tailrace.model import Op, Relation
from tailrace.model.change import BEFORE, OP
from tailrace.sinks.keys import (
    Codes,
    Column,
    Mask,
    Rows,
    encode_keys,
    key_columns,
    null_key_column,
)


@dataclass(frozen=True, slots=True)
class Events:
    """What happens to keys, in order: one event for each row, and before it, for an update that
    changes the key, one that deletes the old key.

    `key` is an index into `keys`, which has the rows' own keys first, and then old ones. `source`
    is, for each row, the event in which its previous state is left: the delete of the old key, or
    the row's own event.
    """

    code: Codes
    row: Rows
    key: Rows
    deletes: Mask
    source: Rows
    keys: pa.Table

    @classmethod
    def of(cls, rows: pa.Table, relation: Relation) -> Events:
        own = key_columns(rows, relation.key)
        require_values(own, relation)
        count = rows.num_rows
        with_old = np.flatnonzero(
            is_op(rows, Op.UPDATE) & rows.column(BEFORE).is_valid().to_numpy()
        )
        old = _old_keys(rows, relation, with_old)
        require_values(old, relation)
        own_codes, old_codes = encode_keys(own, old)
        differs = old_codes != own_codes[with_old]
        moved, moved_codes = with_old[differs], old_codes[differs]
        every = np.arange(count)
        return cls(
            code=np.insert(own_codes, moved, moved_codes),
            row=np.insert(every, moved, moved),
            key=np.insert(every, moved, count + np.flatnonzero(differs)),
            deletes=np.insert(is_op(rows, Op.DELETE), moved, True),
            source=every + np.searchsorted(moved, every, side="left"),
            keys=pa.concat_tables([own, old]).combine_chunks(),
        )

    def last_of_each_key(self) -> Rows:
        """The event that decides about each key."""
        last = np.empty(int(self.code.max(initial=-1)) + 1, dtype=np.int64)
        last[self.code] = np.arange(len(self.code))
        return last

    def previous(self) -> Rows:
        """For each event the one before it with the same key, or -1."""
        order = np.argsort(self.code, kind="stable")
        previous = np.full(len(order), -1, dtype=np.int64)
        same = self.code[order[1:]] == self.code[order[:-1]]
        previous[order[1:][same]] = order[:-1][same]
        return previous


def _old_keys(rows: pa.Table, relation: Relation, with_old: Rows) -> pa.Table:
    before = rows.column(BEFORE).take(with_old)
    columns = [of_struct(before, name) for name in relation.key]
    return pa.table(columns, names=list(relation.key))


def of_struct(structs: Column, name: str) -> Column:
    """One field of a column of structs, by the name itself."""
    # By place: a name with dots would be read as a path.
    fields: Column = pc.struct_field(structs, [structs.type.get_field_index(name)])
    return fields


def require_values(keys: pa.Table, relation: Relation) -> None:
    """Refuse keys that their columns cannot hold."""
    name = null_key_column(keys)
    if name is not None:
        raise SchemaError(
            f"a row of {relation.qualified} has a value in key column {name} that the type of that"
            " column cannot hold",
            hint="values such as NaN or infinity cannot identify a row; change them in the source,"
            " or deliver the table in append mode",
        )


def with_keys(parts: Iterable[pa.Table], relation: Relation) -> Iterator[pa.Table]:
    """The same rows; raises SchemaError at one whose key its columns cannot hold."""
    for part in parts:
        require_values(key_columns(part, relation.key), relation)
        yield part


def is_op(rows: pa.Table, op: Op) -> Mask:
    """The rows with this operation."""
    return np.asarray(pc.equal(rows.column(OP), pa.scalar(op.value)), dtype=np.bool_)
