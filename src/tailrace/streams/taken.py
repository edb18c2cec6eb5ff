"""The tables that a stream has taken up, and how far each of them is.

A stream takes up a table by loading its base. From then on the table's target holds everything up
to `position`. Tables may stand at different positions: one whose base is older or newer than what
the stream has reached is caught up by itself, or waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tailrace.log import Base
from tailrace.model import Lsn, Offset, Relation
from tailrace.postgres.pattern import TablePattern


@dataclass(frozen=True, slots=True)
class Taken:
    """A table, known by its oid and under its name: one that was renamed, or dropped and made
    again, is another. `generation` is when its rows were last read from Postgres.
    """

    oid: int
    schema: str
    name: str
    generation: Lsn
    position: Offset

    @classmethod
    def from_base(cls, base: Base) -> Taken:
        """As it is once the base is loaded."""
        table, at = base.relation, Offset.whole(base.position)
        return cls(table.oid, table.schema, table.name, base.generation, at)

    @property
    def qualified(self) -> str:
        """`schema.name`."""
        return f"{self.schema}.{self.name}"

    def to_json(self) -> list[object]:
        """As a record keeps it."""
        position = [int(self.position.commit_lsn), self.position.ordinal]
        return [self.oid, self.schema, self.name, int(self.generation), *position]

    @classmethod
    def from_json(cls, value: Sequence[object]) -> Taken:
        """Read what `to_json` gave; raises ValueError."""
        match value:
            case [int(oid), str(schema), str(name), int(generation), int(lsn), int(ordinal)]:
                return cls(oid, schema, name, Lsn(generation), Offset(Lsn(lsn), ordinal))
        raise ValueError(f"not a table of a stream: {value!r}")


TakenTables: TypeAlias = tuple[Taken, ...]


def slowest(tables: TakenTables, otherwise: Offset) -> Offset:
    """From where a stream has to read: where the table stands that is least far."""
    return min((table.position for table in tables), default=otherwise)


def moved_to(tables: TakenTables, upto: Offset) -> TakenTables:
    """After a batch that ends at `upto`."""
    return tuple(replace(table, position=max(table.position, upto)) for table in tables)


def with_loaded(tables: TakenTables, loaded: Taken) -> TakenTables:
    """After a load. What stood under the same name before was another table, and is gone."""
    rest = [t for t in tables if t.oid != loaded.oid and t.qualified != loaded.qualified]
    return (*rest, loaded)


def matching(tables: TakenTables, patterns: Sequence[str]) -> TakenTables:
    """Those that the stream is still asked for."""
    parsed = [TablePattern.parse(text) for text in patterns]
    return tuple(t for t in tables if any(one.matches(t.schema, t.name) for one in parsed))


def due_loads(
    bases: Mapping[int, Base],
    tables: TakenTables,
    patterns: Sequence[str],
    can_take: Callable[[Relation], bool],
) -> list[Base]:
    """The bases to load: of tables that are new to the stream or were read from Postgres anew, and
    that it can take at all.
    """
    taken = {(table.oid, table.qualified): table.generation for table in tables}
    asked = matching(tuple(map(Taken.from_base, bases.values())), patterns)
    newest: dict[str, Taken] = {}
    for table in sorted(asked, key=lambda table: table.generation):
        # A table that was dropped and made again has bases of both; a fold may move either on.
        newest[table.qualified] = table
    return [
        bases[table.oid]
        for name, table in sorted(newest.items())
        if table.generation > taken.get((table.oid, name), Lsn(0))
        and can_take(bases[table.oid].relation)
    ]
