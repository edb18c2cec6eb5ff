"""What the configuration file changes in the control schema: shown first, then done.

A stream that SQL has made is never touched, whatever the file says or does not say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from tailrace.control.streams import (
    Definition,
    Origin,
    StreamRow,
    declare,
    read_streams,
    reporting,
    withdraw,
)
from tailrace.postgres.session import Connection
from tailrace.streams.kept_roster import Kept


@dataclass(frozen=True, slots=True)
class Changed:
    """A stream of the file that differs from its row, and in what."""

    stream: Kept
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """`foreign` are streams of the file that SQL has made or taken over: the file's is not used."""

    added: tuple[Kept, ...] = ()
    changed: tuple[Changed, ...] = ()
    removed: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people; none if there is nothing to do."""
        for each in self.added:
            tables = ", ".join(each.definition.tables)
            yield f"+ stream {each.name}: {tables} to {each.definition.sink['type']}"
        for change in self.changed:
            yield f"~ stream {change.stream.name}: {', '.join(change.columns)}"
        for name in self.removed:
            yield f"- stream {name}: not declared any more; `tailrace stream rm {name}` ends it"
        for name in self.foreign:
            yield f"! stream {name}: made by SQL, so the file's is not used"


def plan_streams(conn: Connection, source: str, declared: Sequence[Kept]) -> StreamPlan:
    """Compare the file with the control schema."""
    rows = {row.name: row for row in read_streams(conn, source)}
    names = {each.name for each in declared}
    ours = [(each, rows.get(each.name)) for each in declared]
    return StreamPlan(
        added=tuple(each for each, row in ours if row is None),
        changed=tuple(
            Changed(each, columns)
            for each, row in ours
            if row is not None and _is_of_file(row) and (columns := _differing(each, row))
        ),
        removed=tuple(n for n, row in rows.items() if _is_of_file(row) and n not in names),
        foreign=tuple(each.name for each, row in ours if row is not None and not _is_of_file(row)),
    )


def carry_out(conn: Connection, source: str, plan: StreamPlan) -> None:
    """Do what the plan says, at once."""
    with reporting(conn):
        for each in (*plan.added, *(change.stream for change in plan.changed)):
            declare(conn, source, each.name, each.definition)
        withdraw(conn, source, plan.removed)


def _is_of_file(row: StreamRow) -> bool:
    return row.origin is Origin.FILE


def _differing(declared: Kept, row: StreamRow) -> tuple[str, ...]:
    names = [field.name for field in fields(Definition)]
    old, new = row.definition, declared.definition
    return tuple(name for name in names if getattr(old, name) != getattr(new, name))
