"""The outcomes of a batch in temporary tables, for one transaction.

Their columns are typed as the target's and named by their place: `c` values, `o` the key under
which the target has the row, `k` whether a value is kept. The last two are there only if something
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from psycopg import sql

from tailrace.model import Relation
from tailrace.postgres.binaries import Array
from tailrace.postgres.quote import identifier, qualified
from tailrace.postgres.session import Connection
from tailrace.sinks.fold import Fold
from tailrace.sinks.postgres.copy_in import copy_in
from tailrace.sinks.postgres.strings import STRING
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.value_texts import texts_of

UPSERTS: Final = qualified("pg_temp", "tailrace_upserts")
DELETES: Final = qualified("pg_temp", "tailrace_deletes")


def places(letter: str, names: Iterable[str]) -> list[str]:
    """The staging columns for these names."""
    return [f"{letter}{at}" for at, _ in enumerate(names)]


def stage_deletes(conn: Connection, target: Target, relation: Relation, fold: Fold) -> None:
    """The keys that go."""
    names = places("c", relation.key)
    _make(conn, DELETES, target, zip(relation.key, names, strict=True))
    copy_in(conn, DELETES, names, texts_of(fold.deletes, relation.key))


def stage_upserts(conn: Connection, target: Target, relation: Relation, fold: Fold) -> None:
    """The rows that come, and what they keep."""
    values = places("c", relation.column_names)
    typed = list(zip(relation.column_names, values, strict=True))
    columns = texts_of(fold.upserts, relation.column_names)
    if not fold.kept:
        _make(conn, UPSERTS, target, typed)
        copy_in(conn, UPSERTS, values, columns)
        return
    origins, flags = places("o", relation.key), places("k", fold.kept)
    _make(conn, UPSERTS, target, [*typed, *zip(relation.key, origins, strict=True)], flags)
    masks: list[Array] = [pa.array(mask).cast(STRING) for mask in fold.kept.values()]
    columns = [*columns, *texts_of(fold.origins, relation.key), *masks]
    copy_in(conn, UPSERTS, [*values, *origins, *flags], columns)


def _make(
    conn: Connection,
    table: sql.Identifier,
    target: Target,
    columns: Iterable[tuple[str, str]],
    flags: Sequence[str] = (),
) -> None:
    parts = [
        *(sql.SQL("{} AS {}").format(*map(identifier, pair)) for pair in columns),
        *(sql.SQL("false AS {}").format(identifier(flag)) for flag in flags),
    ]
    query = sql.SQL(
        "CREATE TEMPORARY TABLE IF NOT EXISTS {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
    )
    conn.execute(query.format(table, sql.SQL(", ").join(parts), target.name))


def make_staged(conn: Connection, target: Target, relation: Relation, kept: Sequence[str]) -> None:
    """Both tables, empty, for many parts: one that is made for each of them would stay locked until
    the transaction ends, and a server has room for few locks.
    """
    values = places("c", relation.column_names)
    columns = list(zip(relation.column_names, values, strict=True))
    if kept:
        columns += zip(relation.key, places("o", relation.key), strict=True)
    _make(conn, UPSERTS, target, columns, places("k", kept))
    _make(conn, DELETES, target, zip(relation.key, places("c", relation.key), strict=True))
    # Outside of any savepoint, like the making: then it is done in place.
    conn.execute(sql.SQL("TRUNCATE {}, {}").format(UPSERTS, DELETES))
