"""Values that Postgres did not send, in a batch that is taken apart.

A row that is taken leaves such a value where it stands, as in a batch that is taken as it is: no
other record of the batch touches that row. Only of a record that becomes a dead letter it is read,
because a letter is whole: from the target, or, if an older letter of the row waits, from the newest
one. Letters are made one by one, so no more than one row's values are in memory for them.

A row that has changed its key is different. The record that deletes its old key may go with another
part, so what it has is read before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg import sql

from tailrace.model import Relation
from tailrace.postgres.quote import identifier
from tailrace.postgres.session import Connection
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Mask, Rows
from tailrace.sinks.letters.message import Message, lane_of
from tailrace.sinks.postgres.merge import lacking_row
from tailrace.sinks.postgres.records import Kept, Records, key_texts
from tailrace.sinks.postgres.strings import STRING
from tailrace.sinks.postgres.target import Target, type_names
from tailrace.sinks.postgres.value_texts import texts_of

Newest = Callable[[str, str], Message | None]
"""`newest(table, lane)`: what waits last in a lane; None if nothing does."""

_Values = dict[int, dict[str, str | None]]


def with_kept_values(
    conn: Connection,
    target: Target,
    records: Records,
    fold: Fold,
    newest: Newest,
    leaves_out: Callable[[Records, int], bool],
) -> Records:
    """The records of this fold, which know how to come by what they lack; those that are left out
    need not. Raises TargetLost if the target lacks a row.
    """
    relation, behind = records.relation, len(fold.erased)
    keeping = np.array(
        [at for at in fold.keeping if not leaves_out(records, behind + int(at))], dtype=np.intp
    )
    if not len(keeping):
        return records
    if fold.truncated:
        raise lacking_row(relation)
    moved = keeping[_is_moved(fold, keeping, relation)]
    if len(moved):
        found = _values(conn, target, relation, fold, moved.tolist(), newest)
        records = replace(records, texts=_filled(records.texts, fold, moved.tolist(), found))
    masks = {
        name: np.append(np.zeros(behind, dtype=np.bool_), mask) for name, mask in fold.kept.items()
    }
    for mask in masks.values():
        mask[behind + moved] = False

    def read(at: int) -> dict[str, str | None]:
        return _values(conn, target, relation, fold, [at - behind], newest)[at - behind]

    return replace(records, kept=Kept(masks, read))


def _is_moved(fold: Fold, keeping: Rows, relation: Relation) -> Mask:
    """Which of these rows the target has under another key, also if only its text is another."""
    own_keys, old_keys = (
        [column.to_pylist() for column in texts_of(rows.take(keeping), relation.key)]
        for rows in (fold.upserts, fold.origins)
    )
    is_moved: Mask = np.zeros(len(keeping), dtype=np.bool_)
    for own, old in zip(own_keys, old_keys, strict=True):
        is_moved |= [each != other for each, other in zip(own, old, strict=True)]
    return is_moved


def _values(
    conn: Connection,
    target: Target,
    relation: Relation,
    fold: Fold,
    upserts: Sequence[int],
    newest: Newest,
) -> _Values:
    """What some upserts keep; raises TargetLost if the target lacks one of their rows."""
    found = _waiting(relation, fold, upserts, newest)
    there = [at for at in upserts if at not in found]
    if there:
        found |= _held(conn, target, relation, fold, there)
    if len(found) < len(upserts):
        raise lacking_row(relation)
    return found


def _filled(texts: pa.Table, fold: Fold, upserts: Sequence[int], found: _Values) -> pa.Table:
    behind = len(fold.erased)
    for name, mask in fold.kept.items():
        values: list[Any] = texts.column(name).to_pylist()
        for at in upserts:
            if mask[at]:
                values[behind + at] = found[at][name]
        place = texts.column_names.index(name)
        texts = texts.set_column(place, name, pa.array(values, STRING))
    return texts


def _waiting(relation: Relation, fold: Fold, keeping: Sequence[int], newest: Newest) -> _Values:
    """What dead letters have."""
    found: _Values = {}
    keys = key_texts(fold.origins.take(keeping), relation)
    for at, key in zip(keeping, keys, strict=True):
        message = newest(relation.qualified, lane_of(relation.qualified, key))
        if message is not None:
            letter = json.loads(message.payload)
            needed = {name for name, mask in fold.kept.items() if mask[at]}
            if letter["op"] == "delete" or not letter["row"].keys() >= needed:
                raise lacking_row(relation)
            found[at] = letter["row"]
    return found


def _held(
    conn: Connection, target: Target, relation: Relation, fold: Fold, there: Sequence[int]
) -> _Values:
    """What the target has."""
    names = list(fold.kept)
    origins = texts_of(fold.origins.take(there), relation.key)
    held = {column.name: column for column in target.layout.columns}
    kinds = type_names(conn, [held[name] for name in relation.key])
    places = [identifier(f"k{at}") for at, _ in enumerate(relation.key)]
    same = [
        sql.SQL("t.{} = o.{}::{}").format(identifier(name), place, kind)
        for name, place, kind in zip(relation.key, places, kinds, strict=True)
    ]
    # Literals: with parameters, a % in the name of a table would be one too.
    lists = [sql.SQL("{}::text[]").format(sql.Literal(each.to_pylist())) for each in origins]
    query = sql.SQL(
        "SELECT o.at, {} FROM unnest({}::int8[], {}) AS o (at, {}) JOIN {} AS t ON {}"
    ).format(
        sql.SQL(", ").join(sql.SQL("t.{}::text").format(identifier(name)) for name in names),
        sql.Literal(list(there)),
        sql.SQL(", ").join(lists),
        sql.SQL(", ").join(places),
        target.name,
        sql.SQL(" AND ").join(same),
    )
    rows = conn.execute(query).fetchall()
    return {at: dict(zip(names, values, strict=True)) for at, *values in rows}
