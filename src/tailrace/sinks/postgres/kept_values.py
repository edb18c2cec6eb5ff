"""Values that Postgres did not send, read back so that a record is whole.

A batch that is taken as it is leaves such a value where it stands. One that is taken apart cannot:
the row that has the value may go with another part, or wait among the dead letters, in which case
its newest letter has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql

from tailrace.model import Relation
from tailrace.postgres.quote import identifier
from tailrace.postgres.session import Connection
from tailrace.sinks.fold import Fold
from tailrace.sinks.letters.message import Message, lane_of
from tailrace.sinks.postgres.merge import lacking_row
from tailrace.sinks.postgres.records import Records, key_texts
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
    """The records of this fold, whole but for what is left out. Raises TargetLost if the target
    lacks a row.
    """
    relation, behind = records.relation, len(fold.erased)
    keeping = [int(at) for at in fold.keeping if not leaves_out(records, behind + int(at))]
    if not keeping:
        return records
    found = _waiting(relation, fold, keeping, newest)
    there = [at for at in keeping if at not in found]
    if there:
        found |= _held(conn, target, relation, fold, there)
    if fold.truncated or len(found) < len(keeping):
        raise lacking_row(relation)
    texts = records.texts
    for name, mask in fold.kept.items():
        values: list[Any] = texts.column(name).to_pylist()
        for at in keeping:
            if mask[at]:
                values[behind + at] = found[at][name]
        place = texts.column_names.index(name)
        texts = texts.set_column(place, name, pa.array(values, STRING))
    return Records(
        relation, texts, records.deletes, records.event_ids, records.places, records.keys
    )


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
