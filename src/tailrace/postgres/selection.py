"""Which tables the configuration means, of which it takes inserts alone, and who reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.model import Relation
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.pattern import TablePattern


@dataclass(frozen=True, slots=True)
class Selection:
    """Patterns of tables. Those that `inserts_only` means as well are taken without their updates
    and deletes if Postgres cannot tell their rows apart; the others are then refused. `streams` has
    the patterns of each stream: they share what is captured, and decide nothing about it.
    """

    patterns: Sequence[str]
    inserts_only: Sequence[str] = ()
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def means(self, table: TableInfo) -> bool:
        """Whether the table is to be captured."""
        return _match(self.patterns, table)

    def is_inserts_only(self, table: TableInfo) -> bool:
        """Whether only its inserts are to be captured."""
        return not table.has_usable_identity and self.lists_inserts_only(table)

    def lists_inserts_only(self, table: TableInfo | Relation) -> bool:
        """Whether only its inserts are to be captured as long as it has no key."""
        return _match(self.inserts_only, table)

    def readers(self, table: TableInfo) -> tuple[str, ...]:
        """The streams that read the table, by name."""
        return tuple(sorted(name for name, own in self.streams.items() if _match(own, table)))


def _match(patterns: Sequence[str], table: TableInfo | Relation) -> bool:
    parsed = map(TablePattern.parse, patterns)
    return any(pattern.matches(table.schema, table.name) for pattern in parsed)
