"""For each key of some tables whether it was changed after a position, and where last.

A target that holds rows has what the stream has delivered, up to some position. An older change of
a row may be written there again only if nothing that was delivered since concerns the same key: no
change, no row that moved there or away, no TRUNCATE, no load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import LogError, SchemaError
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Lsn, Offset, Op, Relation
from tailrace.model.change import COMMIT_LSN, ORDINAL
from tailrace.sinks.conform import conform
from tailrace.sinks.events import Events, is_op
from tailrace.sinks.keys import Mask, find_keys
from tailrace.spark.planning import decode_pieces

KEYS_MAX: Final = 20_000_000
"""More keys of a table than these are not kept in memory."""

_PUT_TOGETHER_ROWS: Final = 1 << 18


class LaterKeys:
    """The keys of one table that were changed since, each with the offset of its last change."""

    def __init__(self, table: str, key: tuple[str, ...], emptied_at: Offset) -> None:
        self.table = table
        self.key = list(key)
        self._parts: list[pa.Table] = []
        self.emptied_at = emptied_at
        """Where every row was replaced or deleted: by the newest base, or by a TRUNCATE since."""

    def concern(self, keys: pa.Table, upto: Offset) -> Mask:
        """Which of these were changed after `upto`."""
        if not self._parts:
            return np.zeros(keys.num_rows, dtype=np.bool_)
        every = self._together()
        typed = conform(keys, pa.schema([every.schema.field(name) for name in self.key]))
        at = find_keys(typed, every.select(self.key))
        is_later: Mask = (at >= 0) & _is_after(every, upto)[at]
        return is_later

    def forget(self, upto: Offset) -> None:
        """What was changed last at or before `upto` is not asked for any more."""
        if self._parts:
            every = self._together()
            later = every.filter(pa.array(_is_after(every, upto)))
            self._parts = [later] if later.num_rows else []

    def add(self, changes: TableChanges) -> None:
        """Changes that follow all those before; raises SchemaError or LogError."""
        relation, rows = changes.relation, changes.rows.combine_chunks()
        if {*relation.key} != {*self.key}:
            raise SchemaError(
                f"the key of {relation.qualified} has changed since then",
                hint="replay only what came after that; or to another place, with --to-sink",
            )
        truncates = np.flatnonzero(is_op(rows, Op.TRUNCATE))
        if len(truncates):
            last = int(truncates[-1])
            lsn, ordinal = (rows.column(name)[last].as_py() for name in (COMMIT_LSN, ORDINAL))
            self.emptied_at = max(self.emptied_at, Offset(Lsn(lsn), ordinal))
            rows = rows.slice(last + 1)
            self._parts.clear()
        if rows.num_rows:
            self._parts.append(self._last_of_each(rows, relation))
            self._limit()

    def _last_of_each(self, rows: pa.Table, relation: Relation) -> pa.Table:
        events = Events.of(rows, relation)
        last = events.last_of_each_key()
        keys = events.keys.take(events.key[last]).select(self.key)
        places = rows.select([COMMIT_LSN, ORDINAL]).take(events.row[last])
        return pa.table([*keys.columns, *places.columns], [*self.key, COMMIT_LSN, ORDINAL])

    def _together(self) -> pa.Table:
        """One row for each key."""
        if len(self._parts) > 1:
            schema = self._parts[-1].schema
            every = pa.concat_tables(conform(part, schema) for part in self._parts)
            keys = every.select(self.key)
            self._parts = [every.take(np.unique(find_keys(keys, keys))).combine_chunks()]
        return self._parts[0]

    def _limit(self) -> None:
        """Several parts may have the same key: put together now and then, they are few."""
        counts = [part.num_rows for part in self._parts]
        if sum(counts[1:]) > max(counts[0], _PUT_TOGETHER_ROWS):
            self._together()
        if self._parts[0].num_rows > KEYS_MAX:
            raise LogError(
                f"over {KEYS_MAX} rows of {self.table} were changed since then",
                hint="replay a later time; `tailrace snapshot` delivers the whole table anew",
            )


class LaterChanges:
    """What was changed in some tables, by oid, in `(after, upto]`."""

    def __init__(
        self,
        reader: Reader,
        tables: Mapping[int, LaterKeys],
        after: Offset,
        keyed: Callable[[Relation], Relation] = lambda relation: relation,
    ) -> None:
        """`keyed` gives a table the key that the stream has for it."""
        self._reader = reader
        self._keyed = keyed
        self._names = {oid: table.table for oid, table in tables.items()}
        self._columns = tuple({name for table in tables.values() for name in table.key})
        self.tables = tables
        self.upto = after

    def extend(self, upto: Offset) -> None:
        """Look at what was changed since; raises LogError or SchemaError."""
        if upto <= self.upto:
            return

        def wanted(relation: Relation) -> bool:
            return self._names.get(relation.oid) == relation.qualified

        planned = pieces(self._reader, self.upto, upto, wanted=wanted)
        for changes in decode_pieces(self._reader.store, planned, wanted, self._columns):
            own = TableChanges(self._keyed(changes.relation), changes.rows)
            self.tables[own.relation.oid].add(own)
        self.upto = upto


def _is_after(places: pa.Table, upto: Offset) -> Mask:
    """Whether these offsets are after `upto`."""
    lsn, ordinal = (places.column(name).to_numpy() for name in (COMMIT_LSN, ORDINAL))
    is_same = (lsn == int(upto.commit_lsn)) & (ordinal > upto.ordinal)
    is_after: Mask = (lsn > int(upto.commit_lsn)) | is_same
    return is_after
