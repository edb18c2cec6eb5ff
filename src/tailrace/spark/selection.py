"""What a stream delivers of its tables: of their columns some, of their rows some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tailrace.errors import SchemaError
from tailrace.model import Relation

if TYPE_CHECKING:
    from tailrace.decode import TableChanges


@dataclass(frozen=True, slots=True)
class Selection:
    """`columns` is None for all of them."""

    columns: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """In the words of the configuration: another text is another selection."""
        return "" if self.columns is None else f"columns: {', '.join(self.columns)}"

    @property
    def read_columns(self) -> tuple[str, ...] | None:
        """The columns that must be decoded; None for all."""
        return self.columns

    def narrow(self, relation: Relation) -> Relation:
        """The shape in which a table is delivered; raises SchemaError if it lacks a column."""
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
        """The changes as they are delivered; raises SchemaError."""
        from tailrace.decode import TableChanges

        relation = self.narrow(changes.relation)
        return TableChanges(relation, changes.rows)


EVERYTHING: Final = Selection()
"""All columns of all rows."""
