"""The source's side of the proof: one snapshot of Postgres, summed up by SQL in Postgres.

A value's text is what its type's output function gives, which is what a replication stream sends.
Only floats differ: their eight (or four) bytes are compared, because writers of decimal digits do
not agree on the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from tailrace.cli.proof.digest import Buckets, Row, Shape
from tailrace.model import PgType
from tailrace.postgres.named_types import read_named_types
from tailrace.postgres.session import Connection, connect

_SETTINGS: Final = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

_COLUMNS: Final = """
SELECT a.attname, a.atttypid, a.attgenerated <> '' AS generated,
       COALESCE(a.attnum = ANY (i.indkey::int2[]), false) AS in_key
FROM pg_attribute AS a
LEFT JOIN pg_index AS i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_TABLE: Final = """
SELECT c.oid, c.relkind = 'p', n.nspname, c.relname
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname || '.' || c.relname = %s AND c.relkind IN ('r', 'p')
"""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column, and how its text is made; `type_oid` is the base type of a domain."""

    name: str
    type_oid: int
    generated: bool
    in_key: bool

    @property
    def is_float(self) -> bool:
        """Whether its text is that of its bytes."""
        return self.type_oid in (PgType.FLOAT4, PgType.FLOAT8)

    def text(self) -> sql.Composed:
        """The SQL expression of its text."""
        name = sql.Identifier(self.name)
        match self.type_oid:
            case PgType.FLOAT8:
                return sql.SQL("encode(float8send({}), 'hex')").format(name)
            case PgType.FLOAT4:
                return sql.SQL("encode(float4send({}), 'hex')").format(name)
            case _:
                # A cast to text would strip char(n); format() gives the output function's text.
                return sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END").format(name)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the catalog has it."""

    schema: str
    name: str
    partitioned: bool
    columns: tuple[SourceColumn, ...]

    @property
    def rows(self) -> sql.Composed:
        """What to select from: of a table with children only its own rows, as they are streamed."""
        name = sql.Identifier(self.schema, self.name)
        return sql.SQL("{}" if self.partitioned else "ONLY {}").format(name)


class Snapshot:
    """The source at one moment; every method sees the same."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, table: str) -> SourceTable | None:
        """The table of that name (`schema.name`)."""
        found = self._connection.execute(_TABLE, [table]).fetchone()
        if found is None:
            return None
        oid, partitioned, schema, name = found
        columns = [SourceColumn(*c) for c in self._connection.execute(_COLUMNS, [oid]).fetchall()]
        types = read_named_types(self._connection, (column.type_oid for column in columns))
        domains = {oid: known.base_oid for oid, known in types.items() if known.base_oid}
        based = (replace(c, type_oid=domains.get(c.type_oid, c.type_oid)) for c in columns)
        return SourceTable(schema, name, partitioned, tuple(based))

    def buckets(self, table: SourceTable, shape: Shape) -> Buckets:
        """Sum up the table."""
        query = sql.SQL(
            "SELECT {bucket}, count(*), sum({digest}) FROM ({rows}) AS r GROUP BY 1"
        ).format(
            bucket=_bucket(shape),
            # The first 64 bits, as a signed number.
            digest=sql.SQL("('x' || left(encode({}, 'hex'), 16))::bit(64)::bigint").format(
                _sha256(shape.columns)
            ),
            rows=_texts(table, shape),
        )
        found = self._connection.execute(query).fetchall()
        return {bucket: (count, int(total)) for bucket, count, total in found}

    def read(self, table: SourceTable, shape: Shape, buckets: frozenset[int]) -> list[Row]:
        """The rows of some buckets."""
        # Literals, not parameters: with these, a % in the name of a column would be one too.
        query = sql.SQL("SELECT * FROM ({rows}) AS r WHERE {bucket} = ANY ({wanted})").format(
            rows=_texts(table, shape), bucket=_bucket(shape), wanted=sql.Literal(sorted(buckets))
        )
        return self._connection.execute(query).fetchall()


@contextmanager
def snapshot(dsn: str) -> Iterator[Snapshot]:
    """The source as it is now, until the end of the block."""
    with (
        connect(dsn, application_name="tailrace_proof", settings=_SETTINGS) as connection,
        connection.transaction(),
    ):
        yield Snapshot(connection)


def _texts(table: SourceTable, shape: Shape) -> sql.Composed:
    by_name = {column.name: column for column in table.columns}
    texts = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(by_name[name].text(), sql.Identifier(name))
        for name in shape.columns
    )
    return sql.SQL("SELECT {} FROM {}").format(texts, table.rows)


def _bucket(shape: Shape) -> sql.Composed:
    return sql.SQL("get_byte({}, 0)").format(_sha256(shape.key))


def _sha256(columns: Sequence[str]) -> sql.Composed:
    framed = sql.SQL(" || ").join(
        sql.SQL("COALESCE(length({0}) || ':' || {0} || ',', '-,')").format(sql.Identifier(name))
        for name in columns
    )
    return sql.SQL("sha256(convert_to({}, 'UTF8'))").format(framed)
