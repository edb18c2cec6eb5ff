"""The verdict: a base and the changes that end after it, folded, are the source.

Rows are read by plain code of their own, a field at a time, as Postgres' text.
"""

from __future__ import annotations

import re

import psycopg

from tailrace.log import Base
from tailrace.log.bases import newest_bases, read_base_part
from tailrace.storage import Store
from tests.capture.oracle import State, Values, apply, read_changes, source_state

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def base_rows(store: Store, base: Base) -> list[Values]:
    """The rows of a base, each once."""
    names = base.relation.column_names
    rows = []
    for part in base.parts:
        for line in read_base_part(store, part).to_pylist():
            assert line is not None
            fields = line.decode().split("\t")
            rows.append(dict(zip(names, map(_value, fields), strict=True)))
    return rows


def _value(text: str) -> str | None:
    if text == "\\N":
        return None
    return re.sub(r"\\(.)", lambda match: _ESCAPES[match[1]], text)


def fold(store: Store) -> State:
    """Tables that have a base: its rows, then what ended after it."""
    bases = newest_bases(store)
    state: State = {}
    for base in bases.values():
        rows = base_rows(store, base)
        keyed = {tuple(row[name] for name in base.relation.key): row for row in rows}
        assert len(keyed) == len(rows), "a row is in the base twice"
        state[base.relation.qualified] = keyed
    for change in read_changes(store):
        found = bases.get(change.relation.oid)
        if found is not None and change.end_lsn > found.position:
            apply(state[found.relation.qualified], change)
    return state


def assert_equal(store: Store, connection: psycopg.Connection, *tables: str) -> None:
    """Each table has a base, and with it the log holds what the source holds."""
    folded, wanted = fold(store), source_state(connection, list(tables))
    for table in tables:
        assert folded[table] == wanted[table]
