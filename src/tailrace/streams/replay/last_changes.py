"""For each key of a table where in the log it was changed last: what comes earlier is outdone.

A target that holds rows has what the stream has delivered, up to some position. An older change of
a row may be written there again only if nothing that was delivered since concerns the same key: no
change, no row that moved there or away, no TRUNCATE, no load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.errors import LogError, SchemaError
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Lsn, Offset, Op, Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, ORDINAL
from tailrace.sinks.conform import conform
from tailrace.sinks.events import Events, is_op
from tailrace.sinks.keys import Mask, Rows, find_keys
from tailrace.spark.planning import decode_pieces
from tailrace.streams.taken import Taken

PLACE: Final = (COMMIT_LSN, ORDINAL, COMMIT_TS)
"""Where and when a change happened."""

KEYS_MAX: Final = 20_000_000
"""More keys than these are not kept in memory."""


class LastChanges:
    """The keys of one table that were changed in `(after, upto]`, each with its last change."""

    def __init__(self, reader: Reader, table: Taken, key: tuple[str, ...], after: Offset) -> None:
        self._reader = reader
        self._table = table
        self._key = key
        self._found: list[pa.Table] = []
        self.upto = after
        self.emptied_at = Offset.whole(table.generation)
        """Where every row was replaced or deleted: by its base, or by a later TRUNCATE."""

    def extend(self, upto: Offset) -> None:
        """Look at what was changed since; raises LogError if there are too many keys, SchemaError
        if the key has become another.
        """
        if upto <= self.upto:
            return
        for changes in self._changes(self.upto, upto):
            self._add(changes)
        self.upto = upto

    def forget(self, upto: Offset) -> None:
        """What was changed last at or before `upto` is not asked for any more."""
        if self._found:
            every = self._every()
            lsn, ordinal = (every.column(name).to_numpy() for name in (COMMIT_LSN, ORDINAL))
            self._found = [every.filter(pa.array(~_is_within(lsn, ordinal, upto)))]

    def places(self, keys: pa.Table, upto: Offset) -> pa.Table:
        """For each of these keys its last change, if that is at or before `upto` and no TRUNCATE
        came since; else NULLs.
        """
        every, names = self._every(), list(self._key)
        typed = conform(keys, pa.schema([every.schema.field(name) for name in names]))
        at = find_keys(typed, every.select(names))
        lsn, ordinal = (every.column(name).to_numpy()[at] for name in (COMMIT_LSN, ORDINAL))
        is_last = (at >= 0) & _is_within(lsn, ordinal, upto)
        is_last &= ~_is_within(lsn, ordinal, self.emptied_at)
        return every.select(list(PLACE)).take(pa.array(at, pa.int64(), mask=~is_last))

    def _every(self) -> pa.Table:
        """One row for each key."""
        if len(self._found) > 1:
            names = list(self._key)
            joined = pa.concat_tables(conform(part, self._found[-1].schema) for part in self._found)
            keys = joined.select(names)
            rows = np.unique(find_keys(keys, keys))
            self._found = [joined.take(rows).combine_chunks()]
        return self._found[0]

    def _add(self, changes: TableChanges) -> None:
        relation, rows = changes.relation, changes.rows.combine_chunks()
        truncates = np.flatnonzero(is_op(rows, Op.TRUNCATE))
        if len(truncates):
            last = rows.slice(int(truncates[-1]), 1)
            at = Offset(Lsn(last.column(COMMIT_LSN)[0].as_py()), last.column(ORDINAL)[0].as_py())
            self.emptied_at = max(self.emptied_at, at)
            rows = rows.slice(int(truncates[-1]) + 1)
            self._found.clear()
        if {*relation.key} != {*self._key}:
            raise SchemaError(
                f"the key of {relation.qualified} has changed since then",
                hint="replay only what came after that; or to another place, with --to-sink",
            )
        if not rows.num_rows:
            return
        events = Events.of(rows, relation)
        last_events = events.last_of_each_key()
        keys = events.keys.take(events.key[last_events]).select(list(self._key))
        places = rows.select(list(PLACE)).take(events.row[last_events])
        self._found.append(pa.table([*keys.columns, *places.columns], [*self._key, *PLACE]))
        self._limit()

    def _limit(self) -> None:
        """Several parts may have the same key: put together now and then, they are few."""
        counts = [part.num_rows for part in self._found]
        if sum(counts[1:]) > max(counts[0], 1 << 18):
            self._every()
        if self._found[0].num_rows > KEYS_MAX:
            raise LogError(
                f"over {KEYS_MAX} rows of {self._table.qualified} were changed since then",
                hint="replay one table at a time, or a later time; `tailrace snapshot"
                f" {self._table.qualified}` delivers the whole table anew",
            )

    def _changes(self, after: Offset, upto: Offset) -> Iterator[TableChanges]:
        table = self._table

        def wanted(relation: Relation) -> bool:
            return relation.oid == table.oid and relation.qualified == table.qualified

        planned = pieces(self._reader, after, upto, wanted=wanted)
        yield from decode_pieces(self._reader.store, planned, wanted, self._key)


def _is_within(lsn: Rows, ordinal: Rows, upto: Offset) -> Mask:
    """Whether these offsets are at or before `upto`."""
    is_same = lsn == int(upto.commit_lsn)
    is_within: Mask = (lsn < int(upto.commit_lsn)) | (is_same & (ordinal <= upto.ordinal))
    return is_within
