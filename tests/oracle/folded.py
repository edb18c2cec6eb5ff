"""The log, folded by plain code of its own: each table's newest base, and the changes after it.

Nothing that delivers has a part in this. A change that does not fit the one before it, or comes
twice, fails at once and names the row's writer and sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.log import Base
from tailrace.log.bases import newest_bases, newest_positions, read_base_part
from tailrace.log.wanted import wanted_bases
from tailrace.model import Relation
from tailrace.storage import Store
from tests.capture.oracle import LoggedChange, Values, read_changes

Key: TypeAlias = tuple[str | None, ...]

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass
class FoldedTable:
    """One table as the log leaves it; rows by key."""

    relation: Relation
    rows: dict[Key, Values] = field(default_factory=dict)

    def apply(self, change: LoggedChange) -> None:
        """Take the next change; it must fit."""
        self._reshape(change.relation)
        if change.op == "T":
            self.rows.clear()
            return
        before: Values = {}
        if change.op != "I":
            found = change.old or change.new
            assert found is not None
            key = self.key_of(found)
            assert key in self.rows, f"{self._at(change)}: nothing is known of {key}"
            before = self.rows.pop(key)
        if change.new is not None:
            row = {**before, **change.new}
            assert row.keys() >= set(self.relation.column_names), f"{self._at(change)}: {row}"
            key = self.key_of(row)
            assert key not in self.rows, f"{self._at(change)}: {key} is there already"
            self.rows[key] = row

    def _reshape(self, relation: Relation) -> None:
        """Columns that are gone are forgotten, new ones are null; rows are known by the new key."""
        old_key = self.relation.key
        if relation.columns != self.relation.columns:
            names = relation.column_names
            for row in self.rows.values():
                for name in row.keys() - set(names):
                    del row[name]
                row.update({name: None for name in names if name not in row})
        self.relation = relation
        if relation.key != old_key:
            self.rows = {self.key_of(row): row for row in self.rows.values()}

    def key_of(self, row: Values) -> Key:
        """The row's key."""
        return tuple(row[name] for name in self.relation.key)

    def _at(self, change: LoggedChange) -> str:
        row = change.new or change.old or {}
        stamp = f"writer {row.get('writer')} seq {row.get('seq')}"
        return f"{self.relation.qualified} {change.end_lsn:X}:{change.ordinal} {change.op} {stamp}"


def fold(store: Store) -> dict[int, FoldedTable]:
    """Each table that has a base and needs no newer one, by oid."""
    bases = newest_bases(store)
    wanted = wanted_bases(store, newest_positions(store))
    tables = {}
    for oid, base in bases.items():
        if oid not in wanted:
            table = FoldedTable(base.relation)
            for row in _base_rows(store, base):
                key = table.key_of(row)
                assert key not in table.rows, f"{base.relation.qualified} {key} is twice in a base"
                table.rows[key] = row
            tables[oid] = table
    last = (0, -1)
    for change in read_changes(store):
        at = (change.end_lsn, change.ordinal)
        assert at > last, "a change stands twice in the log, or out of order"
        last = at
        oid = change.relation.oid
        if oid in tables and change.end_lsn > bases[oid].position:
            tables[oid].apply(change)
    return tables


def _base_rows(store: Store, base: Base) -> Iterator[Values]:
    names = base.relation.column_names
    for part in base.parts:
        for line in read_base_part(store, part).to_pylist():
            assert isinstance(line, bytes)
            fields = line.decode().split("\t") if names else []
            yield dict(zip(names, map(_field, fields), strict=True))


def _field(text: str) -> str | None:
    """One field of COPY's text format."""
    if text == "\\N":
        return None
    head, *rest = text.split("\\")
    unescaped = head
    rest_iter = iter(rest)
    for piece in rest_iter:
        if not piece:
            # Two backslashes are one, and what follows them stands for itself.
            unescaped += "\\" + next(rest_iter, "")
        else:
            unescaped += _ESCAPES.get(piece[0], piece[0]) + piece[1:]
    return unescaped
