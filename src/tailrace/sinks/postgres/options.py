"""How a target database is written to."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.model import Relation
from tailrace.sinks.columns import Mode


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """`schema` takes all tables; without one each goes to a schema named like its source's.

    `dsn` holds a password: it is never shown.
    """

    dsn: str = field(repr=False)
    schema: str | None = None
    mode: Mode = Mode.UPSERT

    def place(self, relation: Relation) -> tuple[str, str]:
        """The schema and the name of the relation's target."""
        return (self.schema or relation.schema, relation.name)
