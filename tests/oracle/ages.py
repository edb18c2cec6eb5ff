"""Looks at the rows of the other database again and again: none may ever become older.

A row counts its changes, and a key that was deleted never comes back: so a replay that puts an
older state over a newer one is seen also if the next change mends it.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from tests.oracle.arrivals import SHOWN, Row
from tests.oracle.journal import SCHEMA, TABLES

_GONE: Final = 1 << 31


class Ages:
    """The newest state of each row that was seen."""

    def __init__(self) -> None:
        self._seen: dict[Row, int] = {}
        self.looks = 0

    def look(self, target: psycopg.Connection) -> None:
        """Fail if a row is older than it was; a table that is not there yet has none."""
        for table in TABLES:
            query = sql.SQL("SELECT id, n FROM {}").format(sql.Identifier(SCHEMA, table))
            try:
                rows: dict[int, int] = dict(target.execute(query).fetchall())
            except psycopg.errors.UndefinedTable:
                continue
            older = [
                f"{table} {key}: {number} where {self._seen[table, key]} was"
                for key, number in rows.items()
                if number < self._seen.get((table, key), 0)
            ]
            assert not older, f"{len(older)} rows have become older: {older[:SHOWN]}"
            gone = [each for each in self._seen if each[0] == table and each[1] not in rows]
            self._seen |= {(table, key): number for key, number in rows.items()}
            self._seen |= dict.fromkeys(gone, _GONE)
        self.looks += 1
