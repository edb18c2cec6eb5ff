"""Changes as lines of text, for looking at a stream: offset, what happened, table, key, values.

    0/16B3748:3 update public.orders id=7 status="paid"

A whole table is announced by a line of its own, `0/16B3748 load public.orders`; then come its rows.

It records nothing: a batch that comes again is shown again. A change that is replayed has the id of
the replay at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TextIO

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Lsn, Offset, Op, Relation, ReplicaIdentity
from tailrace.model.change import BEFORE, COMMIT_LSN, OP, ORDINAL, TEXT, UNCHANGED
from tailrace.sinks.sink import Batch, Holds, Load

_VALUE_CHARS_MAX: Final = 80

Row = Mapping[str, object]


class ConsoleSink:
    """Writes one line for each change, in offset order across tables."""

    holds = Holds.MESSAGES

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def prepare(self, relation: Relation) -> None:
        """Every table can be shown."""

    def write(self, batch: Batch) -> None:
        """Show the batch, and flush."""
        lines = [line for changes in batch.tables for line in _lines(changes)]
        lines.sort(key=lambda line: line[0])
        mark = f" (replay {batch.replay})" if batch.replay else ""
        self._out.writelines(f"{offset} {text}{mark}\n" for offset, text in lines)
        self._out.flush()

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Say that the table comes whole, and show its rows."""
        self._out.write(f"{load.position} load {load.relation.qualified}\n")
        for part in rows:
            lines = _lines(TableChanges(load.relation, part))
            self._out.writelines(f"{offset} {text}\n" for offset, text in lines)
        self._out.flush()

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """Nothing is recorded."""
        return {}

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """Nothing is held."""
        return set()

    def close(self) -> None:
        """The writer is its owner's."""


def _lines(changes: TableChanges) -> Iterator[tuple[Offset, str]]:
    relation = changes.relation
    for batch in changes.rows.to_batches():
        for row in batch.to_pylist():
            offset = Offset(Lsn(row[COMMIT_LSN]), row[ORDINAL])
            shown = [f"{name}={_show(row, name)}" for name in _names(row, relation)]
            yield offset, " ".join([row[OP], relation.qualified, *shown])


def _names(row: Row, relation: Relation) -> list[str]:
    """The key's columns, then those that the change has set."""
    match row[OP]:
        case Op.TRUNCATE:
            return []
        case Op.DELETE:
            return list(relation.key or relation.column_names)
        case Op.INSERT:
            changed = set(relation.column_names)
        case _:
            changed = _changed(row, relation)
    rest = [name for name in relation.column_names if name in changed - {*relation.key}]
    return [*relation.key, *rest]


def _changed(row: Row, relation: Relation) -> set[str]:
    """The columns an update has set; those that it has sent, if the old row is not known whole."""
    unchanged, before = row[UNCHANGED], row[BEFORE]
    names = set(relation.column_names)
    if isinstance(unchanged, list):
        names -= set(unchanged)
    if relation.identity is ReplicaIdentity.FULL and isinstance(before, dict):
        names = {name for name in names if row[name] != before[name]}
    return names


def _show(row: Row, name: str) -> str:
    value = row[name]
    texts = row[TEXT]
    if value is None and isinstance(texts, list):
        value = dict(texts).get(name)
    if value is None:
        return "null"
    shown = json.dumps(
        value if isinstance(value, bool | int | float | str) else str(value), ensure_ascii=False
    )
    return shown if len(shown) <= _VALUE_CHARS_MAX else f"{shown[:_VALUE_CHARS_MAX]}…"
