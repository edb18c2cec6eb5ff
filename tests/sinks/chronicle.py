"""What a table of versions must hold, by plain dictionary operations: the oracle of the history
tests.

It reads the changes that a source has emitted, one at a time, and so knows the moment of each. A
moment is `(commit time, commit LSN, ordinal)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tailrace.decode import TableChanges
from tests.sinks.source import NAN, Source

Moment = tuple[object, int, int]
Row = dict[str, object]


@dataclass
class Version:
    """One state of one row."""

    row: Row
    begin: Moment
    end: Moment | None = None


@dataclass
class Chronicle:
    """Every version, in the order of their begin; `present` has the open one of each key."""

    source: Source
    every: list[Version] = field(default_factory=list)
    present: dict[tuple[object, ...], Version] = field(default_factory=dict)

    def take(self) -> TableChanges:
        """The source's pending changes, taken note of."""
        changes = self.source.take()
        for change in changes.rows.to_pylist():
            self._note(change)
        return changes

    def load(self) -> None:
        """The table is loaded as it is: what differs ends, and begins at the load."""
        time = time_of(self.source.lsn)
        rows = {key: (at, row) for at, (key, row) in enumerate(self.source.rows.items())}
        for key, version in list(self.present.items()):
            # A value in `_text` cannot be compared, so it counts as another.
            same = key in rows and rows[key][1] == version.row
            if not same or NAN in version.row.values():
                self._end(key, (time, self.source.lsn, -1))
        for key, (at, row) in rows.items():
            if key not in self.present:
                self._begin(dict(row), (time, self.source.lsn, at))

    def rows(self) -> list[tuple[object, ...]]:
        """Every version as (values…, text, begin…, end…)."""
        never = (None, None, None)
        return sorted(
            (
                (*_values(version.row), *version.begin, *(version.end or never))
                for version in self.every
            ),
            key=repr,
        )

    def graves(self) -> list[tuple[object, ...]]:
        """The last version of each key as (values…, text, time of its end)."""
        last = {self._key(version.row): version for version in self.every}
        return sorted(
            (
                (*_values(version.row), version.end[0] if version.end else None)
                for version in last.values()
            ),
            key=repr,
        )

    def _note(self, change: dict[str, Any]) -> None:
        moment = (change["_commit_ts"], change["_commit_lsn"], change["_ordinal"])
        names = self.source.relation.column_names
        texts = dict(change["_text"] or ())
        row: Row = {name: texts.get(name, change[name]) for name in names}
        before = change["_before"]
        match change["_op"]:
            case "truncate":
                for key in list(self.present):
                    self._end(key, moment)
            case "insert":
                self._begin(row, moment)
            case "delete":
                self._end(self._key(before), moment)
            case "update":
                old = self._key(before) if before else self._key(row)
                held = self.present[old].row
                for name in change["_unchanged"] or ():
                    row[name] = held[name]
                self._end(old, moment)
                self._begin(row, moment)

    def _begin(self, row: Row, moment: Moment) -> None:
        version = Version(row, moment)
        self.every.append(version)
        self.present[self._key(row)] = version

    def _end(self, key: tuple[object, ...], moment: Moment) -> None:
        self.present.pop(key).end = moment

    def _key(self, row: Row) -> tuple[object, ...]:
        return tuple(row[name] for name in self.source.relation.key)


def _values(row: Row) -> tuple[object, ...]:
    """The typed values, and the texts of those that their columns cannot hold."""
    texts = [(name, NAN) for name, value in row.items() if value == NAN] or None
    return (*(None if value == NAN else value for value in row.values()), texts)


def time_of(lsn: int) -> datetime:
    """The commit time that the source gives to an LSN."""
    return datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC")) + timedelta(seconds=lsn)
