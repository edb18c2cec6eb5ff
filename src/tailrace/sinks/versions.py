"""The changes of one table in one batch as versions of its rows: when each begins and ends.

    an insert or update opens a version of its key and ends the one that was open
    a delete, and an update that moves the row to another key, end the old key's version
    a TRUNCATE ends every version that is open

A version's begin and end are changes, so they have an offset and a commit time. What ends in the
batch and began before it stands in the target; `closings` and `truncated_at` say how it ends there.
Nothing depends on where one batch ends and the next begins: any split gives the same versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Op, Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, ORDINAL, TEXT
from tailrace.sinks.events import Events, is_op
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Codes, Mask, Rows
from tailrace.sinks.lineage import Lineage
from tailrace.sinks.refusal import require_key
from tailrace.sinks.texts import with_own_texts

PLACE: Final = (COMMIT_TS, COMMIT_LSN, ORDINAL)
"""The columns of a change that say when it happened."""


@dataclass(frozen=True, slots=True)
class Versions:
    """`rows` are the versions, one upsert each, in the order of their begin; like a fold's, they
    may keep values of the target's open rows.

    `opened`, `closed` (-1: it stays open) and `key` are beside them: the changes that begin and
    end them, and a number for their key. `closings` are keys whose version in the target, if there
    is one, ends with the change in `closings_at`; every other one that is open ends with
    `truncated_at`, if that is set. `places` says when each change of the batch happened.
    """

    rows: Fold
    opened: Rows
    closed: Rows
    key: Codes
    closings: pa.Table
    closings_at: Rows
    truncated_at: int | None
    places: pa.Table

    def place(self, changes: Rows) -> pa.Table:
        """When these changes happened; NULL for -1."""
        return self.places.take(pa.array(changes, pa.int64(), mask=changes < 0))

    @property
    def is_last(self) -> Mask:
        """The last version of each key."""
        last = np.full(int(self.key.max(initial=-1)) + 1, -1, dtype=np.int64)
        last[self.key] = np.arange(len(self.key))
        is_last: Mask = last[self.key] == np.arange(len(self.key))
        return is_last


def versions(changes: TableChanges) -> Versions:
    """The versions that a table's changes make and end; raises SchemaError if a row has no usable
    key, or lacks a value that only the source has.
    """
    relation = changes.relation
    require_key(relation)
    every = changes.rows.combine_chunks()
    is_truncate = is_op(every, Op.TRUNCATE)
    truncates, places = np.flatnonzero(is_truncate), np.flatnonzero(~is_truncate)
    rows = with_own_texts(every.take(places)).combine_chunks()
    events = Events.of(rows, relation)
    at = places[events.row]
    opening = np.flatnonzero(~events.deletes)
    last_place = np.append(truncates, every.num_rows)
    first = _first_of_each_key(events)
    first = first[at[first] < last_place[0]]
    closed = np.minimum(_ends(events, at, every.num_rows), last_place[_after(truncates, at)])
    closed[closed == every.num_rows] = -1
    return Versions(
        rows=_filled(rows, events, events.row[opening], relation),
        opened=at[opening],
        closed=closed[opening],
        key=events.code[opening],
        closings=events.keys.take(events.key[first]),
        closings_at=at[first],
        truncated_at=int(truncates[0]) if len(truncates) else None,
        places=every.select(list(PLACE)),
    )


def _after(truncates: Rows, at: Rows) -> Rows:
    """For each change the number of TRUNCATEs before it."""
    return np.searchsorted(truncates, at)


def _ends(events: Events, at: Rows, never: int) -> Rows:
    """For each event the change that is next to touch the same key."""
    ends = np.full(len(at), never, dtype=np.int64)
    previous = events.previous()
    follows = np.flatnonzero(previous >= 0)
    ends[previous[follows]] = at[follows]
    return ends


def _first_of_each_key(events: Events) -> Rows:
    return np.flatnonzero(events.previous() < 0)


def _filled(rows: pa.Table, events: Events, final: Rows, relation: Relation) -> Fold:
    """The rows, with the values that Postgres did not send as far as the batch has them."""
    upserts = rows.select([*relation.column_names, TEXT]).take(final)
    nothing = events.keys.slice(0, 0)
    upserts, origins, kept = Lineage.of(rows, events, relation).fill(upserts, final)
    return Fold(truncated=False, upserts=upserts, deletes=nothing, origins=origins, kept=kept)
