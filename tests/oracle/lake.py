"""Lake tables, read by plain code of its own: what each mode says that the source holds.

Nothing that delivers has a part in this. The rows of an upsert table are the source's; those of a
history the ones whose version is open; those of an append table what its changes fold to, in the
order of their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from deltalake import DeltaTable

from tailrace.sinks.place import escape
from tests.capture.oracle import Values
from tests.oracle.tables import RESHAPED, SCHEMA, Table

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[tuple[str | None, ...], Values]


def lake_rows(lake: Path, table: Table, mode: str, columns: list[str]) -> Rows:
    """The rows that a lake table stands for, by key, with these columns only, as text."""
    uri = lake / SCHEMA / escape(table.name)
    found: list[Row] = DeltaTable(str(uri)).to_pyarrow_table().to_pylist()
    rows = _READ[mode](found, table)
    keyed = {_key(row, table): _texts(row, columns) for row in rows}
    assert len(keyed) == len(rows), f"{uri} has a key twice"
    return keyed


def _upsert(found: list[Row], table: Table) -> list[Row]:
    return found


def _history(found: list[Row], table: Table) -> list[Row]:
    return [row for row in found if row["_valid_to"] is None]


def _append(found: list[Row], table: Table) -> list[Row]:
    state: dict[tuple[str | None, ...], Row] = {}
    changes = {_place(row): row for row in found}
    assert len(changes) == len(found), f"{table.name} has a change twice"
    for place in sorted(changes):
        row = changes[place]
        if row["_op"] == "truncate":
            state.clear()
            continue
        old = row["_before"] if row["_before"] is not None else row
        before: Row = {}
        if row["_op"] != "insert":
            before = state.pop(_key(old, table))
        if row["_op"] != "delete":
            kept = {name: before.get(name) for name in row["_unchanged"] or ()}
            state[_key(row, table)] = {**row, **kept}
    return list(state.values())


def _place(row: Row) -> tuple[int, bool, int]:
    """What ended at the position of a base is in the base, and so before it."""
    return row["_commit_lsn"], row["_origin"] == "snapshot", row["_ordinal"]


_READ: Final[Mapping[str, Callable[[list[Row], Table], list[Row]]]] = {
    "upsert": _upsert,
    "history": _history,
    "append": _append,
}
MODES: Final = tuple(_READ)


def tables_of(mode: str, tables: Iterable[Table]) -> list[Table]:
    """Those that a lake of this mode can follow: one that keeps older rows keeps their shape."""
    return [table for table in tables if mode == "upsert" or table is not RESHAPED]


def _key(row: Row, table: Table) -> tuple[str | None, ...]:
    return tuple(_text(row[name]) for name in table.key)


def _texts(row: Row, columns: list[str]) -> Values:
    """A column that the lake does not have yet is null for every row."""
    return {name: _text(row.get(name)) for name in columns}


def _text(value: object) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value)
