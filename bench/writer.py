"""A writer of one table, and what it writes beside: sides that take turns in short slices.

What slows the machine down for a while slows neighbouring slices alike, so that their ratio says
more than rates that were taken minutes apart. A slice has a lead-in that does not count: whatever
is beside the writer is at work by then, as it is in a steady flow.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import psycopg

from tailrace.postgres.session import Connection

_STATEMENTS: Final = {
    "insert": """
INSERT INTO {}
SELECT g, g % 10007, (g % 99999989) / 100.0, substr(md5(g::text), 1, 20),
       '2026-01-01'::timestamptz + g * interval '1.234567 seconds', g % 3 = 0
  FROM generate_series($1::bigint, $2::bigint) AS g""",
    "update": "UPDATE {} SET paid = NOT paid WHERE id BETWEEN $1 AND $2",
    "delete": "DELETE FROM {} WHERE id BETWEEN $1 AND $2",
}

KINDS: Final = tuple(_STATEMENTS)
_LEAD_IN_SHARE: Final = 4


class Sides(Protocol):
    """What the writer can be beside, by name."""

    @property
    def names(self) -> Sequence[str]:
        """All of them."""
        ...

    def beside(self, name: str) -> AbstractContextManager[str]:
        """While this lasts, the writer is beside that side and no other; the table to write to."""
        ...


class Writer:
    """A plain client with a session's default settings: it sends one statement after the other, and
    each is durable when the next is sent.
    """

    def __init__(self, conn: Connection, *, rows_per_statement: int) -> None:
        self._conn = conn
        self._rows = rows_per_statement
        self._next: defaultdict[tuple[str, str], int] = defaultdict(lambda: 1)

    def write(self, table: str, kind: str, statement_count: int) -> float:
        """Change the table's next rows; rows in a second."""
        first, text = self._next[table, kind], _STATEMENTS[kind].format(table).encode()
        last = first + statement_count * self._rows
        self._next[table, kind] = last
        with psycopg.RawCursor(self._conn) as client:
            began = time.perf_counter()
            for row in range(first, last, self._rows):
                client.execute(text, (row, row + self._rows - 1), prepare=True)
            return (last - first) / (time.perf_counter() - began)


def take_turns(
    writer: Writer, sides: Sides, *, slices: int, statements: int
) -> Iterator[tuple[str, Mapping[str, list[float]]]]:
    """For each kind of change: the rates beside each side, slice by slice."""
    for kind in KINDS:
        rates: dict[str, list[float]] = defaultdict(list)
        for number in range(slices):
            for turn in range(len(sides.names)):
                name = sides.names[(turn + number) % len(sides.names)]
                with sides.beside(name) as table:
                    writer.write(table, kind, -(-statements // _LEAD_IN_SHARE))
                    rates[name].append(writer.write(table, kind, statements))
        yield kind, rates
