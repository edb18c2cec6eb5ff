"""docs/reference/types.md says what the code does, and leaves out no built-in type."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import Schema
from psycopg import sql

from tailrace.decode import arrow_schema
from tailrace.model import Relation
from tailrace.postgres.session import connect
from tailrace.postgres.table_shape import read_shape
from tailrace.spark.shape import change_type
from tests.server import Database

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "types.md"

SIZES: Final = ("(12,2)", "(38,0)", "(38,38)", "(1,0)")
"""For `numeric(p,s)`; the other sizes are text."""

UNSIZED: Final = ("numeric", "numeric(39,2)", "numeric(2,4)", "numeric(5,-2)")

Mapping = dict[str, tuple[str, ...]]


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "Postgres" and set(row[0]) != {"-"}]


def _sized(text: str, size: str) -> str:
    precision, scale = re.findall(r"\d+", size)
    return text.replace("p,", f"{precision},").replace("s)", f"{scale})")


def _on_the_page() -> Mapping:
    found: Mapping = {}
    for first, *others in _rows():
        types = re.findall(r"`([^`]+)`", first)
        if len(others) == 1:
            found |= dict.fromkeys(types, ("string", "string", "string"))
            continue
        arrow, spark, delta = (text.strip("`") for text in others)
        for name in types:
            if name == "numeric(p,s)":
                for size in SIZES:
                    mapped = (_sized(text, size) for text in (arrow, spark, delta))
                    found[f"numeric{size}"] = tuple(mapped)
            else:
                found[name] = (arrow, spark, delta)
    # These stand on the page for types of extensions, which are made elsewhere.
    for name in ("hstore", "citext", "vector"):
        found.pop(name, None)
    return found | dict.fromkeys(UNSIZED, ("string",) * 3)


def _in_the_code(relation: Relation) -> Mapping:
    arrow = arrow_schema(relation)
    spark = change_type(relation, None)
    delta = {field["name"]: field["type"] for field in json.loads(_delta(arrow))["fields"]}
    return {
        name: (str(arrow.field(name).type), spark[name].dataType.simpleString(), delta[name])
        for name in relation.column_names
    }


def _delta(schema: pa.Schema) -> str:
    return Schema.from_arrow(schema).to_json()


def test_the_page_and_the_code_map_every_built_in_type_alike(database: Database) -> None:
    page = _on_the_page()
    with connect(database.dsn) as conn:
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(name)) for name in page
        )
        conn.execute(sql.SQL("CREATE TABLE public.every ({})").format(columns))
        (oid,) = conn.execute("SELECT 'public.every'::regclass::oid::bigint").fetchone() or ()
        shape = read_shape(conn, oid)
        assert shape is not None
        assert _in_the_code(shape.relation) == page
        built_in = conn.execute(
            """SELECT t.oid::bigint, t.typname::text FROM pg_type AS t
                WHERE t.typtype IN ('b', 'r', 'm') AND t.oid < 10000
                  AND NOT EXISTS (SELECT FROM pg_type AS e WHERE e.typarray = t.oid)"""
        ).fetchall()
    used = {column.type_oid for column in shape.relation.columns}
    assert [name for type_oid, name in built_in if type_oid not in used] == []
