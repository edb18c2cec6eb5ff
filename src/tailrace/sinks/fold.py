"""The changes of one table in one batch, folded to what an upsert must do: one outcome for each
key.

    state after = (truncated ? nothing : state before) - deletes, then upserts

The last change of a key wins. An update that changes the key is a delete of the old key and an
upsert of the new one. A TRUNCATE voids everything before it. A value that Postgres did not send
because it did not change is taken from the row's earlier change in the batch, followed across
changes of its key; if there is none, only the target has it, and it is marked in `kept`. It is
never NULL by omission.

Pure, and by the column: no Python runs per row, but for the rare row that inherits an entry of
`_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import TableChanges
from tailrace.errors import SchemaError
from tailrace.model import Op, Relation
from tailrace.model.change import BEFORE, OP, TEXT, UNCHANGED
from tailrace.sinks.keys import (
    Codes,
    Column,
    Mask,
    Rows,
    encode_keys,
    key_columns,
    null_key_column,
)
from tailrace.sinks.refusal import require_key


@dataclass(frozen=True, slots=True)
class Fold:
    """What to do with the target, whose state before the batch it does not know.

    `upserts` has the table's columns and `_text`, one row for each key, in the order of the last
    changes. `deletes` has the key's columns: keys that must not be there afterwards. No key is in
    both.

    `kept` gives, for a column, the upserts whose value is still the target's. `origins` has, row
    by row beside `upserts`, the key under which the target has that row; it matters only where
    something is kept.
    """

    truncated: bool
    upserts: pa.Table
    deletes: pa.Table
    origins: pa.Table
    kept: Mapping[str, Mask] = field(default_factory=dict)

    @property
    def keeping(self) -> Rows:
        """The upserts that need something of the target's row."""
        if not self.kept:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(np.logical_or.reduce(list(self.kept.values())))


def fold(changes: TableChanges) -> Fold:
    """Fold the changes of one table; raises SchemaError if a row has no usable key."""
    relation = changes.relation
    require_key(relation)
    truncated, rows = _after_truncate(changes.rows)
    rows = rows.combine_chunks()
    events = _Events.of(rows, relation)
    last = events.last_of_each_key()
    gone = events.deletes[last]
    final = np.sort(events.row[last[~gone]])
    upserts = rows.select([*relation.column_names, TEXT]).take(final)
    origins = events.keys.take(final)
    kept: dict[str, Mask] = {}
    if rows.column(UNCHANGED).null_count < rows.num_rows:
        upserts, origins, kept = _Lineage.of(rows, events).fill(upserts, final)
    # The target is emptied anyway.
    erased = np.empty(0, dtype=np.int64) if truncated else np.sort(last[gone])
    return Fold(truncated, upserts, events.keys.take(events.key[erased]), origins, kept)


def _after_truncate(rows: pa.Table) -> tuple[bool, pa.Table]:
    truncates = np.flatnonzero(_equal(rows, Op.TRUNCATE))
    if not len(truncates):
        return False, rows
    return True, rows.slice(int(truncates[-1]) + 1)


def _equal(rows: pa.Table, op: Op) -> Mask:
    return np.asarray(pc.equal(rows.column(OP), pa.scalar(op.value)), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class _Events:
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
    def of(cls, rows: pa.Table, relation: Relation) -> _Events:
        own = key_columns(rows, relation.key)
        _require_values(own, relation)
        count = rows.num_rows
        with_old = np.flatnonzero(
            _equal(rows, Op.UPDATE) & rows.column(BEFORE).is_valid().to_numpy()
        )
        old = _old_keys(rows, relation, with_old)
        _require_values(old, relation)
        own_codes, old_codes = encode_keys(own, old)
        differs = old_codes != own_codes[with_old]
        moved, moved_codes = with_old[differs], old_codes[differs]
        every = np.arange(count)
        return cls(
            code=np.insert(own_codes, moved, moved_codes),
            row=np.insert(every, moved, moved),
            key=np.insert(every, moved, count + np.flatnonzero(differs)),
            deletes=np.insert(_equal(rows, Op.DELETE), moved, True),
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
    columns = [_of_struct(before, name) for name in relation.key]
    return pa.table(columns, names=list(relation.key))


def _of_struct(structs: Column, name: str) -> Column:
    # By place: a name with dots would be read as a path.
    fields: Column = pc.struct_field(structs, [structs.type.get_field_index(name)])
    return fields


def _require_values(keys: pa.Table, relation: Relation) -> None:
    name = null_key_column(keys)
    if name is not None:
        raise SchemaError(
            f"a row of {relation.qualified} has a value in key column {name} that the type of that"
            " column cannot hold",
            hint="values such as NaN or infinity cannot identify a row; change them in the source,"
            " or deliver the table in append mode",
        )


@dataclass(frozen=True, slots=True)
class _Lineage:
    """From which earlier row of the batch each row took over its state; -1 if from the target."""

    rows: pa.Table
    events: _Events
    parent: Rows

    @classmethod
    def of(cls, rows: pa.Table, events: _Events) -> _Lineage:
        previous = events.previous()[events.source]
        # A row never continues a deleted one; it would be new, and then nothing of it is unchanged.
        continues = (previous >= 0) & ~events.deletes[previous]
        return cls(rows, events, np.where(continues, events.row[previous], -1))

    def fill(self, upserts: pa.Table, final: Rows) -> tuple[pa.Table, pa.Table, dict[str, Mask]]:
        """Complete the final rows: the upserts, the origins of their rows, and what is kept."""
        origin = final.copy()
        kept: dict[str, Mask] = {}
        inherited: dict[str, Rows] = {}
        for name, unchanged in _unchanged(self.rows).items():
            values, missing = self._with_before(name, unchanged)
            holder = self._holders(missing)[final]
            place = upserts.column_names.index(name)
            upserts = upserts.set_column(place, upserts.field(name), values.take(holder))
            inherited[name] = holder
            if missing[holder].any():
                kept[name] = missing[holder]
                origin = np.where(missing[holder], holder, origin)
        texts = _inherit_texts(self.rows.column(TEXT), final, inherited)
        upserts = upserts.set_column(upserts.num_columns - 1, upserts.field(TEXT), texts)
        events = self.events
        return upserts, events.keys.take(events.key[events.source[origin]]), kept

    def _with_before(self, name: str, unchanged: Mask) -> tuple[Column, Mask]:
        """The column, taken from the old row where Postgres sent that whole, and where it is
        still missing.

        NULL is never sent as "unchanged", so a NULL in the old row only says that it is not there.
        """
        old = _of_struct(self.rows.column(BEFORE), name)
        known = unchanged & old.is_valid().to_numpy()
        if not known.any():
            return self.rows.column(name), unchanged
        values = pc.if_else(pa.array(known), old, self.rows.column(name))
        return values, unchanged & ~known

    def _holders(self, missing: Mask) -> Rows:
        """For each row the nearest row of its lineage, itself included, that has the value, or
        its first row.

        Each round doubles the distance that is looked back, so that a key changed a million times
        takes twenty.
        """
        holder = np.arange(len(missing))
        open_rows = np.flatnonzero(missing & (self.parent >= 0))
        holder[open_rows] = self.parent[open_rows]
        while len(open_rows):
            further = holder[holder[open_rows]]
            moved = further != holder[open_rows]
            holder[open_rows] = further
            open_rows = open_rows[moved]
        return holder


def _unchanged(rows: pa.Table) -> dict[str, Mask]:
    """For each column that occurs in `_unchanged`, the rows that name it."""
    lists = rows.column(UNCHANGED).combine_chunks()
    parents = pc.list_parent_indices(lists).to_numpy()
    names = pc.list_flatten(lists).dictionary_encode()
    codes = names.indices.to_numpy(zero_copy_only=False)
    found: dict[str, Mask] = {}
    for code, name in enumerate(names.dictionary.to_pylist()):
        mask = np.zeros(rows.num_rows, dtype=np.bool_)
        mask[parents[codes == code]] = True
        found[str(name)] = mask
    return found


def _inherit_texts(texts: Column, final: Rows, inherited: Mapping[str, Rows]) -> Column:
    """The texts of the final rows, with those that came along with inherited values."""
    own = texts.take(final)
    has_text = texts.is_valid().to_numpy()
    touched = np.zeros(len(final), dtype=np.bool_)
    for holder in inherited.values():
        touched |= (holder != final) & has_text[holder]
    if not touched.any():
        return own
    merged = own.to_pylist()
    for at in np.flatnonzero(touched):
        entries = dict(merged[at] or ())
        for name, holder in inherited.items():
            given = dict(texts[int(holder[at])].as_py() or ())
            if name in given:
                entries[name] = given[name]
        merged[at] = list(entries.items()) or None
    return pa.chunked_array([pa.array(merged, type=texts.type)])
