"""How a target database is written to."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.model import Relation
from tailrace.sinks.columns import Mode
from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.postgres.sessions import ANSWER_S


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """`schema` takes all tables; without one each goes to a schema named like its source's.

    `letters` is how many rows that the target refuses may wait.

    `answer_s` is when a target that does not answer is taken for dead.

    `dsn` holds a password: it is never shown.
    """

    dsn: str = field(repr=False)
    schema: str | None = None
    mode: Mode = Mode.UPSERT
    letters: LetterLimits = field(default_factory=LetterLimits)
    answer_s: float = ANSWER_S

    def place(self, relation: Relation) -> tuple[str, str]:
        """The schema and the name of the relation's target."""
        return (self.schema or relation.schema, relation.name)
