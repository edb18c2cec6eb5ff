"""What a stream delivers of its tables: of their columns some, of their rows some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from tailrace.errors import SchemaError
from tailrace.model import META_COLUMNS, Relation, ReplicaIdentity
from tailrace.model.change import BEFORE, TEXT, UNCHANGED
from tailrace.where import Predicate, columns_of, parse_where

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode import TableChanges


@dataclass(frozen=True, slots=True)
class Selection:
    """`columns` is None for all of them, `where` for all rows, `key` for the table's own; `text` is
    what the configuration says: another text is another selection.
    """

    columns: tuple[str, ...] | None = None
    where: Predicate | None = None
    text: str = ""
    key: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        *,
        columns: tuple[str, ...] | None,
        where: str | None,
        key: tuple[str, ...] | None = None,
    ) -> Self:
        """From the configuration; raises ConfigError."""
        told = [] if columns is None else [f"columns: {', '.join(columns)}"]
        told += [] if key is None else [f"key: {', '.join(key)}"]
        told += [] if where is None else [f"where: {where}"]
        predicate = None if where is None else parse_where(where)
        return cls(columns, predicate, "; ".join(told), key)

    def __str__(self) -> str:
        return self.text

    @property
    def read_columns(self) -> tuple[str, ...] | None:
        """The columns that must be decoded; None for all."""
        if self.columns is None or self.where is None:
            return self.columns
        return (*self.columns, *sorted(columns_of(self.where) - set(self.columns)))

    def narrow(self, relation: Relation) -> Relation:
        """The shape in which a table is delivered; raises SchemaError if it lacks a column, or if
        Postgres does not send what the key needs of an old row.
        """
        if self.key is not None:
            key = _checked_key(relation, self.key)
            relation = replace(relation, key=key, is_keyless=False)
        if self.columns is None:
            return relation
        missing = [name for name in self.columns if name not in relation.column_names]
        if missing:
            raise SchemaError(
                f"{relation.qualified} has no column {missing[0]}, which the stream is to deliver",
                hint=f"columns: {', '.join(relation.column_names)}",
            )
        kept = tuple(column for column in relation.columns if column.name in self.columns)
        return replace(relation, columns=kept)

    def apply(self, changes: TableChanges) -> TableChanges:
        """The changes as they are delivered, of changes that have `read_columns`; raises
        SchemaError.
        """
        from tailrace.decode import TableChanges
        from tailrace.where.crossing import filter_changes

        relation = self.narrow(changes.relation)
        if self.where is not None:
            changes = filter_changes(changes, self.where)
        if self.read_columns == self.columns:
            return TableChanges(relation, changes.rows)
        return TableChanges(relation, _narrowed(changes.rows, relation))


def _checked_key(relation: Relation, key: tuple[str, ...]) -> tuple[str, ...]:
    sent = {column.name for column in relation.columns if column.in_identity}
    for name in key:
        if name not in relation.column_names:
            known = ", ".join(relation.column_names)
            raise SchemaError(
                f"{relation.qualified} has no column {name}, which is to be in the stream's key",
                hint=f"columns: {known}",
            )
        if name not in sent and relation.identity is not ReplicaIdentity.FULL:
            raise SchemaError(
                f"postgres does not send {name} of a row of {relation.qualified} that is deleted,"
                " so it cannot be in the stream's key",
                hint=f"ALTER TABLE {relation.qualified} REPLICA IDENTITY FULL",
            )
    return key


EVERYTHING: Final = Selection()
"""All columns of all rows."""


def _narrowed(rows: pa.Table, relation: Relation) -> pa.Table:
    """Without the columns that only the where has asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tailrace.decode import change_schema

    schema = change_schema(relation, relation.column_names)
    names = relation.column_names
    before = rows.column(BEFORE).combine_chunks()
    fields = [pc.struct_field(before, [before.type.get_field_index(name)]) for name in names]
    kind = schema.field(BEFORE).type
    inner = [kind.field(place) for place in range(kind.num_fields)]
    sent = [_only(each, names) for each in rows.column(UNCHANGED).to_pylist()]
    texts = [
        [(key, text) for key, text in each if key.removeprefix(f"{BEFORE}.") in names] or None
        if each
        else None
        for each in rows.column(TEXT).to_pylist()
    ]
    columns = {
        BEFORE: pa.StructArray.from_arrays(fields, fields=inner, mask=before.is_null())
        if fields
        else pa.nulls(rows.num_rows, kind),
        UNCHANGED: pa.array(sent, schema.field(UNCHANGED).type),
        TEXT: pa.array(texts, schema.field(TEXT).type),
    }
    wanted = [*names, *META_COLUMNS]
    return pa.Table.from_arrays(
        [columns[name] if name in columns else rows.column(name) for name in wanted], schema=schema
    )


def _only(sent: list[str] | None, names: tuple[str, ...]) -> list[str] | None:
    return [name for name in sent if name in names] or None if sent else None
