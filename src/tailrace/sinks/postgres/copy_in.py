"""Rows into a table of the target database with COPY."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg import sql

from tailrace.postgres.binaries import Array
from tailrace.postgres.quote import identifier
from tailrace.postgres.session import Connection
from tailrace.sinks.postgres.copy_text import copy_text

_ROWS_AT_ONCE: Final = 50_000


def copy_in(
    conn: Connection,
    table: sql.Identifier,
    names: Sequence[str],
    columns: Sequence[Array],
    *,
    defaults: Collection[str] = (),
) -> None:
    """Add these columns of texts as rows; in pieces, so that memory stays bounded. `defaults` are
    the columns of the table that have one: a table of ours has none, but somebody may have given
    it some.
    """
    count = len(columns[0])
    if not count:
        return
    # A column without a value need not be told.
    told = [
        at
        for at, column in enumerate(columns)
        if column.null_count < count or names[at] in defaults
    ] or [0]
    listed = sql.SQL(", ").join(identifier(names[at]) for at in told)
    command = sql.SQL("COPY {} ({}) FROM STDIN").format(table, listed)
    with conn.cursor().copy(command) as copy:
        for first in range(0, count, _ROWS_AT_ONCE):
            copy.write(copy_text([columns[at].slice(first, _ROWS_AT_ONCE) for at in told]))
