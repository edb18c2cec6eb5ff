"""What changes come to at a target, as texts: one record for each key, or for each change.

A record is what the target takes or refuses by itself, so it is what a dead letter holds: the texts
of the columns, as they would be copied in. For an upsert it is a whole row, or the key of a row
that goes; so of several records of a key only the newest one matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.model import Column, PgType, Relation, ReplicaIdentity
from tailrace.model.change import BEFORE, COMMIT_LSN, META_COLUMNS, OP, ORDINAL, TEXT, UNCHANGED
from tailrace.postgres.binaries import Array
from tailrace.postgres.session import Connection
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Mask, Rows, plain_texts, steady_key
from tailrace.sinks.letters.message import Message, lane_of, place_of
from tailrace.sinks.postgres.change_texts import before_text, names_text
from tailrace.sinks.postgres.merge import merge
from tailrace.sinks.postgres.staging import make_staged
from tailrace.sinks.postgres.strings import STRING
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.types import target_type
from tailrace.sinks.postgres.value_texts import leftovers, texts_of

"""A numeric has at most 131,072 digits before its point and 16,383 behind it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Values that the target's row of the same key still has: of which records, by column. `read`
    gives those of one record, all of them.
    """

    masks: Mapping[str, Mask]
    read: Callable[[int], Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one table, in order; `texts` are columns of the target. `keys` are JSON, empty for
    a row without a key. Of those in `deletes` only the key counts. `is_changes` if they are changes
    and not rows. What is `kept` is NULL in `texts`.
    """

    relation: Relation
    texts: pa.Table
    deletes: Mask
    event_ids: Sequence[str]
    places: Sequence[str]
    keys: Sequence[str]
    is_changes: bool = False
    kept: Kept | None = None

    def lane(self, at: int) -> str:
        """What the record must stay in order with."""
        key = self.keys[at]
        return lane_of(self.relation.qualified, key) if key else lane_of("", self.event_ids[at])

    def message(self, at: int) -> Message:
        """As a dead letter keeps it. Raises TargetLost if the target lacks its row."""
        relation = self.relation
        row = self._row(at)
        op = "change" if self.is_changes else "delete" if self.deletes[at] else "upsert"
        about = {"op": op, "schema": relation.schema, "table": relation.name}
        payload = json.dumps({**about, "key": relation.key, "row": row}, ensure_ascii=False)
        names = (self.event_ids[at], self.places[at], relation.qualified, self.lane(at))
        return Message(*names, self.keys[at], payload.encode())

    def _row(self, at: int) -> dict[str, Any]:
        """All that there is of it."""
        row: dict[str, Any] = self.texts.slice(at, 1).to_pylist()[0]
        if self.deletes[at]:
            return {name: row[name] for name in self.relation.key}
        masks = self.kept.masks if self.kept is not None else {}
        kept = [name for name, mask in masks.items() if mask[at]]
        if self.kept is not None and kept:
            found = self.kept.read(at)
            row |= {name: found[name] for name in kept}
        return row

    def stage(self, conn: Connection, target: Target) -> None:
        """Make what `write` needs, once for the transaction."""
        if not self.is_changes:
            names = list(self.kept.masks) if self.kept is not None else []
            make_staged(conn, target, self.relation, names)

    def write(self, conn: Connection, target: Target, rows: Rows) -> None:
        """Bring some of them into the target; raises as psycopg does."""
        if self.is_changes:
            taken = self.texts.take(rows)
            target.add(conn, taken.column_names, texts_of(taken, taken.column_names))
            return
        gone, there = rows[self.deletes[rows]], rows[~self.deletes[rows]]
        keys = self.texts.select(list(self.relation.key))
        masks = self.kept.masks if self.kept is not None else {}
        kept = {name: mask[there] for name, mask in masks.items()}
        folded = Fold(False, self.texts.take(there), keys.take(gone), keys.take(there), kept)
        merge(conn, target, self.relation, folded)


def row_records(relation: Relation, fold: Fold, rows: pa.Table, sequence: int) -> Records:
    """The deletes of a fold of these changes, which come first, and its upserts. A value that is
    kept is NULL.
    """
    names, key = relation.column_names, list(relation.key)
    gone = texts_of(fold.deletes, key)
    values = dict(zip(names, texts_of(fold.upserts, names), strict=True))
    nothing: Array = pa.nulls(len(fold.erased), STRING)
    columns = [
        pa.concat_arrays([gone[key.index(name)] if name in key else nothing, values[name]])
        for name in names
    ]
    decided = rows.select([COMMIT_LSN, ORDINAL]).take(np.append(fold.erased, fold.changed))
    halves = np.append(~fold.moved, np.ones(len(fold.changed), dtype=np.bool_))
    event_ids, places = _places(decided, halves, sequence)
    return Records(
        relation,
        pa.table(columns, names=list(names)),
        np.arange(len(halves)) < len(fold.erased),
        event_ids,
        places,
        [*key_texts(fold.deletes, relation), *key_texts(fold.upserts, relation)],
    )


def base_records(relation: Relation, rows: pa.Table, sequence: int) -> Records:
    """Rows of a base, as rows."""
    names = relation.column_names
    event_ids, places = _base_places(relation, rows, sequence)
    return Records(
        relation,
        pa.table(texts_of(rows, names), names=list(names)),
        np.zeros(rows.num_rows, dtype=np.bool_),
        event_ids,
        places,
        key_texts(rows, relation),
    )


def change_records(
    relation: Relation, rows: pa.Table, sequence: int, *, is_base: bool = False
) -> Records:
    """Changes as they are; a TRUNCATE has no key."""
    if is_base:
        event_ids, places = _base_places(relation, rows, sequence)
    else:
        every = np.ones(rows.num_rows, dtype=np.bool_)
        event_ids, places = _places(rows, every, sequence)
    keyed = relation.key if not relation.is_keyless else ()
    keys = key_texts(rows, relation) if keyed else [""] * rows.num_rows
    ops: list[Any] = rows.column(OP).to_pylist()
    return Records(
        relation,
        change_texts(relation, rows),
        np.zeros(rows.num_rows, dtype=np.bool_),
        event_ids,
        places,
        ["" if op == "truncate" else key for op, key in zip(ops, keys, strict=True)],
        is_changes=True,
    )


def change_texts(relation: Relation, rows: pa.Table) -> pa.Table:
    """The columns of a table of changes."""
    plain = [name for name in META_COLUMNS if name not in (UNCHANGED, BEFORE, TEXT)]
    names = [*relation.column_names, *plain]
    columns = [
        *texts_of(rows, names),
        names_text(rows.column(UNCHANGED).combine_chunks()),
        before_text(rows, relation, leftovers(rows)),
    ]
    return pa.table(columns, names=[*names, UNCHANGED, BEFORE])


def kept_records(messages: Sequence[Message]) -> Records:
    """The records of one table that dead letters hold. A column that one of them does not know is
    NULL, as in every row that is written after the source has dropped it.
    """
    found = [json.loads(message.payload) for message in messages]
    key = tuple(found[0]["key"])
    names = list(dict.fromkeys(name for each in found for name in each["row"]))
    columns = tuple(Column(name, PgType.TEXT, -1, in_identity=name in key) for name in names)
    schema, name = found[0]["schema"], found[0]["table"]
    texts = {name: pa.array([each["row"].get(name) for each in found], STRING) for name in names}
    return Records(
        Relation(0, schema, name, ReplicaIdentity.DEFAULT, columns, key),
        pa.table(texts),
        np.array([each["op"] == "delete" for each in found], dtype=np.bool_),
        [message.event_id for message in messages],
        [message.place for message in messages],
        [message.key for message in messages],
        is_changes=found[0]["op"] == "change",
    )


def key_texts(rows: pa.Table, relation: Relation) -> list[str]:
    """The keys as JSON, the same for keys that Postgres takes for one."""
    kinds = {column.name: target_type(relation, column).oid for column in relation.columns}
    names = steady_key(relation)
    columns = [
        plain_texts(column.to_pylist(), kinds[name])
        for name, column in zip(names, texts_of(rows, names), strict=True)
    ]
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return [encode(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _places(rows: pa.Table, is_main: Mask, sequence: int) -> tuple[list[str], list[str]]:
    lsns, ordinals = _offsets(rows)
    event_ids = [
        f"{lsn:016X}-{ordinal}" if main else f"{lsn:016X}-{ordinal}-old"
        for lsn, ordinal, main in zip(lsns, ordinals, is_main, strict=True)
    ]
    places = [
        place_of(sequence, lsn, ordinal, int(main))
        for lsn, ordinal, main in zip(lsns, ordinals, is_main, strict=True)
    ]
    return event_ids, places


def _base_places(relation: Relation, rows: pa.Table, sequence: int) -> tuple[list[str], list[str]]:
    """Bases of several tables stand at one position, and each counts its rows from 0."""
    offsets = list(zip(*_offsets(rows), strict=True))
    event_ids = [f"{lsn:016X}-{relation.oid}-{ordinal}-r" for lsn, ordinal in offsets]
    return event_ids, [place_of(sequence, lsn, ordinal, 1) for lsn, ordinal in offsets]


def _offsets(rows: pa.Table) -> tuple[list[Any], list[Any]]:
    return rows.column(COMMIT_LSN).to_pylist(), rows.column(ORDINAL).to_pylist()
