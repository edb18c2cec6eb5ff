"""A lake table as it would be at the source's position, by what the log says.

    lake at P = (truncated ? nothing : lake at Q without the keys touched) + rows folded from (Q, P]

So the two sides are compared at one position although the flow never stops: a key that is not
touched between Q and P must be equal as it stands, one that is touched when its changes are folded.
Of a lake table that keeps every change, all of it is folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import TableChanges, change_schema
from tailrace.model import Origin, Relation
from tailrace.model.change import COMMIT_LSN, META_COLUMNS, OP, ORDINAL, ORIGIN, TEXT
from tailrace.sinks.fold import Fold, fold
from tailrace.sinks.keys import find_keys, key_columns
from tailrace.sinks.settle import settle
from tailrace.verify.delta import DeltaRows
from tailrace.verify.lake import LakeRows, Spread


def rows_at(rows: DeltaRows, relation: Relation, changes: TableChanges | None) -> LakeRows:
    """The lake's rows with changes laid over them; `relation` is the table's shape now."""
    if OP in rows.columns:
        return Folded(_every_change(rows, relation, changes))
    return rows if changes is None else Overlaid(rows, changes)


class Overlaid:
    """Rows of a lake table, without those that changes touch, and the rows that these leave."""

    def __init__(self, rows: DeltaRows, changes: TableChanges) -> None:
        relation = changes.relation
        folded = settle(fold(changes), relation, rows.read, in_place=False)
        self._rows = rows
        self._key = list(relation.key)
        self._is_truncated = folded.truncated
        self._touched = _touched(folded, self._key)
        self._upserts = folded.upserts

    @property
    def columns(self) -> frozenset[str]:
        """Those of the lake, and of the changes, which may have more."""
        return self._rows.columns | frozenset(self._upserts.column_names)

    def count(self) -> int:
        """About how many rows there are."""
        return self._upserts.num_rows + (0 if self._is_truncated else self._rows.count())

    def spread(self, column: str) -> Sequence[Spread] | None:
        """By the files of the lake: what lies over them is little."""
        return None if self._is_truncated else self._rows.spread(column)

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns and `_text`."""
        if not self._is_truncated:
            wanted = list(dict.fromkeys([*columns, *self._key]))
            for table in self._rows.tables(wanted):
                touched = find_keys(table.select(self._key), self._touched) >= 0
                yield _chosen(table.filter(pa.array(~touched)), columns)
        yield _chosen(self._upserts, columns)


class Folded:
    """The rows that every change of a table leaves, in memory."""

    def __init__(self, changes: TableChanges) -> None:
        def nothing(columns: Sequence[str], keys: pa.Table) -> pa.Table:
            return changes.rows.slice(0, 0).select(list(columns))

        folded = settle(fold(changes), changes.relation, nothing, in_place=False)
        self._rows = folded.upserts

    @property
    def columns(self) -> frozenset[str]:
        """The source's own, and `_text`."""
        return frozenset(self._rows.column_names)

    def count(self) -> int:
        """How many rows there are."""
        return self._rows.num_rows

    def spread(self, column: str) -> None:
        """To be looked at: it is in memory."""

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns and `_text`."""
        yield _chosen(self._rows, columns)


def _chosen(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
    return table.select([*columns, *({TEXT} & set(table.column_names) - set(columns))])


def _touched(folded: Fold, key: list[str]) -> pa.Table:
    keys = [key_columns(folded.upserts, key), folded.deletes.select(key)]
    return pa.concat_tables(keys).combine_chunks()


def _every_change(
    rows: DeltaRows, relation: Relation, changes: TableChanges | None
) -> TableChanges:
    relation = changes.relation if changes is not None else relation
    schema = change_schema(relation)
    names = [*relation.column_names, *META_COLUMNS]
    parts = [_chosen(table, names).select(schema.names) for table in rows.tables(names)]
    if changes is not None:
        parts.append(changes.rows.select(schema.names))
    every = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])
    return TableChanges(relation, _in_order(every).combine_chunks())


def _in_order(changes: pa.Table) -> pa.Table:
    """By offset; a base stands behind what ended at its position."""
    is_loaded = pc.equal(changes.column(ORIGIN), pa.scalar(Origin.SNAPSHOT.value))
    order = pa.table(
        [changes.column(COMMIT_LSN), is_loaded, changes.column(ORDINAL)], names=["a", "b", "c"]
    )
    return changes.take(pc.sort_indices(order, [(name, "ascending") for name in "abc"]))
