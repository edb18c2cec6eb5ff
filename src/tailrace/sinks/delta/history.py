"""A lake table that holds every version that the source's rows have had.

    _valid_from, _from_lsn, _from_ordinal   the change that made the version: commit time, offset
    _valid_to, _to_lsn, _to_ordinal         the one that ended it; NULL while it is open

The rows at a time T are those with `_valid_from <= T AND (_valid_to > T OR _valid_to IS NULL)`.
Versions that began and ended in one transaction are never among them, but they are kept: offsets
tell them apart. A load ends and begins only what differs from the versions that were open at its
position. What the table has from after it is undone: the changes since the load come again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, ORDINAL, TEXT
from tailrace.sinks.columns import BEGIN, END, FROM_LSN, TO_LSN, VALID_TO, with_columns
from tailrace.sinks.conform import conform
from tailrace.sinks.delta.bounds import quote, timestamp
from tailrace.sinks.delta.bulk import LoadClauses, Pieces, add_all, merge_all
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.merge import (
    GONE,
    Merge,
    Update,
    assignments,
    merge_source,
    same_key,
)
from tailrace.sinks.delta.target import Target
from tailrace.sinks.events import with_keys
from tailrace.sinks.settle import settle
from tailrace.sinks.shape import row_schema
from tailrace.sinks.sink import LOAD_ORDINAL, Load
from tailrace.sinks.versions import PLACE, Versions, versions

_OPEN: Final = f"{quote(VALID_TO)} IS NULL"


class HistoryForm:
    """The source's columns, `_text`, and when the version began and ended."""

    replaces_shape = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def schema(self, relation: Relation) -> pa.Schema:
        """The key's columns are marked, as in an upsert table; here they are not unique."""
        return row_schema(relation, extra=(*BEGIN, *END))

    def write(self, changes: TableChanges, target: Target, commit: Commit) -> None:
        """Add the versions that begin, and end those that do."""
        schema = target.schema
        found = versions(changes)
        read = partial(target.read, where=_OPEN)
        rows = settle(found.rows, changes.relation, read, in_place=False).upserts
        rows = with_columns(rows, BEGIN, found.place(found.opened))
        rows = conform(with_columns(rows, END, found.place(found.closed)), schema)
        if target.is_empty:
            self._engine.append(target, rows, commit)
        else:
            self._engine.merge(target, _merge(found, rows, schema, changes.relation), commit)

    def load(self, load: Load, rows: Iterable[pa.Table], target: Target, commit: Commit) -> None:
        """Compare the rows with the versions that were open then, key by key."""
        schema = target.schema
        versions = (_opened(part, schema) for part in with_keys(rows, load.relation))
        if target.is_empty:
            add_all(target, Pieces(schema, versions), commit)
        else:
            merge_all(target, _load_clauses(load, schema), Pieces(schema, versions), commit)


def _merge(found: Versions, rows: pa.Table, schema: pa.Schema, relation: Relation) -> Merge:
    key, columns, ends = list(relation.key), schema.names, [field.name for field in END]
    closings = with_columns(found.closings, END, found.place(found.closings_at))
    closings = conform(closings, pa.schema([schema.field(name) for name in [*key, *ends]]))
    rest = None
    if found.truncated_at is not None:
        (place,) = found.place(np.array([found.truncated_at])).to_pylist()
        rest = _rest(place[COMMIT_TS], place[COMMIT_LSN], place[ORDINAL])
    same = same_key(closings.select(key), columns, bounded=rest is None)
    return Merge(
        source=merge_source(columns, rows, closings, {}),
        condition=f"s.{GONE} AND t.{_OPEN} AND {same}",
        inserts=assignments(columns, columns),
        closes=assignments(ends, columns),
        rest=rest,
    )


def _rest(time: datetime, lsn: int, ordinal: int) -> Update:
    """Everything else that is open ends here."""
    ends = [timestamp(time), str(lsn), str(ordinal)]
    updates = {quote(field.name): end for field, end in zip(END, ends, strict=True)}
    return Update(f"t.{_OPEN}", updates)


def _opened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return conform(with_columns(rows, BEGIN, rows.select(list(PLACE))), schema)


def _load_clauses(load: Load, schema: pa.Schema) -> LoadClauses:
    """A row that a version equals which was open then leaves it open; every other such version
    ends. A stream may be past the load: what has ended since is open again, what has begun goes.
    """
    relation, at = load.relation, int(load.position)
    began_later = f"t.{quote(FROM_LSN)} > {at}"
    was_open = f"t.{quote(FROM_LSN)} <= {at} AND (t.{_OPEN} OR t.{quote(TO_LSN)} > {at})"
    same = [f"t.{quote(name)} = s.{quote(name)}" for name in relation.key]
    for name in relation.column_names:
        if name not in relation.key:
            ours, theirs = f"t.{quote(name)}", f"s.{quote(name)}"
            same.append(f"({ours} = {theirs} OR ({ours} IS NULL AND {theirs} IS NULL))")
    # Maps cannot be compared: a row with a value that its column cannot hold counts as another.
    same += [f"{alias}.{quote(TEXT)} IS NULL" for alias in "ts"]
    ends = _rest(_time(load.commit_ts_us), at, LOAD_ORDINAL)
    return LoadClauses(
        condition=" AND ".join([was_open, *same]),
        matched=Update(f"NOT t.{_OPEN}", {quote(field.name): "NULL" for field in END}),
        inserts={quote(name): f"s.{quote(name)}" for name in schema.names},
        undone=began_later,
        rest=replace(ends, where=was_open),
    )


def _time(ts_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts_us)
