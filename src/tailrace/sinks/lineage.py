"""Values that Postgres did not send, found in the earlier changes of the same row.

A row is followed back from change to change, across changes of its key, to the nearest one that has
the value. Where there is none in the batch, the value stands in the target, under the key that the
row had before the batch.

A row that a `where` has let go, and takes in again, has what it had while it was out. Nobody knows
what that was: the target's value is that of the time before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SchemaError
from tailrace.model import Relation
from tailrace.model.change import BEFORE, TEXT, UNCHANGED
from tailrace.sinks.events import Events, of_struct
from tailrace.sinks.keys import Column, Mask, Rows


@dataclass(frozen=True, slots=True)
class Lineage:
    """From which earlier row of the batch each row took over its state; -1 if from the target, or
    if the row has `returned`.
    """

    relation: Relation
    rows: pa.Table
    events: Events
    parent: Rows
    returned: Mask

    @classmethod
    def of(cls, rows: pa.Table, events: Events, relation: Relation) -> Lineage:
        previous = events.previous()[events.source]
        is_gone = events.deletes[previous]
        parent = np.where((previous >= 0) & ~is_gone, events.row[previous], -1)
        return cls(relation, rows, events, parent, (previous >= 0) & is_gone)

    def fill(self, upserts: pa.Table, final: Rows) -> tuple[pa.Table, pa.Table, dict[str, Mask]]:
        """Complete the final rows: the upserts, the origins of their rows, and what is kept. Raises
        SchemaError if nobody has a value.
        """
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
                self._must_have_stayed(holder[missing[holder]], name)
                kept[name] = missing[holder]
                origin = np.where(missing[holder], holder, origin)
        texts = _inherit_texts(self.rows.column(TEXT), final, inherited)
        upserts = upserts.set_column(upserts.num_columns - 1, upserts.field(TEXT), texts)
        events = self.events
        return upserts, events.keys.take(events.key[events.source[origin]]), kept

    def _must_have_stayed(self, rows: Rows, name: str) -> None:
        """A row that was inserted again is whole: these were only out of the stream for a while."""
        if self.returned[rows].any():
            table = self.relation.qualified
            raise SchemaError(
                f"postgres did not send {table}.{name} with an update, because it is large and did"
                " not change; a row that comes back into the stream needs it",
                hint=f"ALTER TABLE … REPLICA IDENTITY FULL, and `tailrace snapshot {table}`",
            )

    def _with_before(self, name: str, unchanged: Mask) -> tuple[Column, Mask]:
        """The column, taken from the old row where Postgres sent that whole, and where it is
        still missing.

        NULL is never sent as "unchanged", so a NULL in the old row only says that it is not there.
        """
        old = of_struct(self.rows.column(BEFORE), name)
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
