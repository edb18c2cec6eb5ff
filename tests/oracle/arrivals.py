"""The verdict on what has arrived, by the journal: by plain code of its own, a value at a time.

A row counts its own changes from 0, and the journal has each of them. At a queue a row's messages,
each taken the first time that it comes, must be these in their order; of a row that has dead
letters, the first of these, and the rest must be letters. What keeps rows must have the source's.
What replays have sent again is not for here: see `replayed`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from psycopg import sql

from tests.oracle.journal import SCHEMA, TABLES

Row: TypeAlias = tuple[str, int]
"""A table and a key."""

Changes: TypeAlias = Mapping[Row, list[str]]
"""What was done to each row, in its order: I, U or D."""

SHOWN = 5
_LETTERS = {"c": "I", "u": "U", "d": "D"}
_OPS = {"insert": "I", "update": "U", "delete": "D"}


def committed(source: psycopg.Connection) -> Changes:
    """What the journal says."""
    found: dict[Row, list[str]] = defaultdict(list)
    query = "SELECT tab, id, n, op FROM journal.changes ORDER BY tab, id, n"
    for table, key, number, op in source.execute(query):
        assert number == len(found[table, key]), "the journal itself has a gap"
        found[table, key].append(op)
    return found


def queue_problems(
    messages: Iterable[dict[str, Any]], truth: Changes, letters: Mapping[Row, int]
) -> tuple[list[str], int]:
    """What is wrong with what a queue has, and how many messages came more than once."""
    arrived: dict[Row, list[str]] = defaultdict(list)
    seen: set[str] = set()
    problems, repeated = [], 0
    for message in messages:
        if message["op"] == "t" or "replay" in message["source"]:
            continue
        event = message["source"]["event_id"]
        if event in seen:
            repeated += 1
            continue
        seen.add(event)
        values = message["after"] or message["before"]
        row = message["source"]["table"], values["id"]
        if message["after"] and values["n"] != len(arrived[row]):
            problems.append(f"{row}: change {values['n']} where {len(arrived[row])} was due")
        arrived[row].append(_LETTERS.get(message["op"], message["op"]))
    for row in truth.keys() | arrived.keys() | letters.keys():
        problems += _row_problems(row, truth.get(row, []), arrived[row], letters.get(row, 0))
    return problems[:SHOWN], repeated


def _row_problems(row: Row, truth: list[str], arrived: list[str], letters: int) -> list[str]:
    if arrived != truth[: len(arrived)]:
        return [f"{row}: {''.join(arrived)} came of {''.join(truth)}"]
    if len(arrived) + letters < len(truth) or letters > len(truth):
        return [f"{row}: {len(arrived)} and {letters} letters of {len(truth)}"]
    if not letters and len(arrived) != len(truth):
        return [f"{row}: {len(arrived)} of {len(truth)}"]
    return []


def rows_problems(source: psycopg.Connection, target: psycopg.Connection, lake: Path) -> list[str]:
    """How the other database and the lake differ from the source."""
    problems = []
    for table in TABLES:
        wanted = _rows(source, table)
        try:
            found = DeltaTable(str(lake / SCHEMA / table)).to_pyarrow_table().to_pylist()
            in_lake = {(row["id"], row["n"], row["v"]) for row in found}
            others = {"postgres": _rows(target, table), "delta": in_lake}
        except (TableNotFoundError, psycopg.errors.UndefinedTable) as error:
            problems.append(f"{table}: {error}")
            continue
        for name, rows in others.items():
            if rows != wanted:
                some = sorted(rows ^ wanted)[:SHOWN]
                problems.append(f"{name} {table}: {len(rows ^ wanted)} rows differ: {some}")
        if len(found) != len(in_lake):
            problems.append(f"delta {table} has a row twice")
    return problems


def _rows(connection: psycopg.Connection, table: str) -> set[tuple[Any, ...]]:
    query = sql.SQL("SELECT id, n, v FROM {}").format(sql.Identifier(SCHEMA, table))
    return set(connection.execute(query).fetchall())


def file_problems(files: Path, truth: Changes) -> list[str]:
    """What is wrong with the change files that the indexes name."""
    arrived: dict[Row, list[str]] = defaultdict(list)
    for table in TABLES:
        changes = change_rows(files, table, is_replay=False)
        offsets = {(change["_commit_lsn"], change["_ordinal"]) for change in changes}
        if len(offsets) != len(changes):
            return [f"parquet {table} has a change twice"]
        for change in sorted(changes, key=lambda each: (each["_commit_lsn"], each["_ordinal"])):
            arrived[table, change["id"]].append(_OPS[change["_op"]])
    rows = truth.keys() | arrived.keys()
    wrong = sorted(row for row in rows if arrived[row] != truth.get(row))
    return [f"parquet {row}: {arrived[row]} of {truth.get(row)}" for row in wrong[:SHOWN]]


def change_rows(files: Path, table: str, *, is_replay: bool) -> list[dict[str, Any]]:
    """The changes of a table that its index names: those that replays have added, or all others."""
    found: list[dict[str, Any]] = []
    for entry in sorted((files / SCHEMA / table).glob("_index/*.json")):
        told = json.loads(entry.read_text())
        if (told["kind"] == "replay") is not is_replay:
            continue
        for file in told["files"]:
            # Of the file alone: its folder is a date, which is no column of it.
            with (files / SCHEMA / table / file["path"]).open("rb") as data:
                columns = ["id", "n", "v", "_op", "_commit_lsn", "_ordinal", "_origin"]
                rows = pq.read_table(data, columns=columns).to_pylist()
            assert all((row["_origin"] == "replay") is is_replay for row in rows), entry
            found += [row for row in rows if row["_op"] in _OPS]
    return found
