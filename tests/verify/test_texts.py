"""The texts that a lake's columns are compared by are those that Postgres prints."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.verify.texts import column_texts
from tests.server import Database

_NUMBERS = random.Random(7)
_DAYS = [_NUMBERS.randrange(-2_400_000, 3_000_000) for _ in range(1000)]
_MOMENTS = [
    _NUMBERS.randrange(-200_000_000_000_000_000, 9_000_000_000_000_000_000) for _ in range(500)
] + [_NUMBERS.randrange(-(10**17), 10**17) for _ in range(500)]
_FLOATS = [_NUMBERS.uniform(-1, 1) * 10 ** _NUMBERS.randrange(-300, 300) for _ in range(1000)]

_AMOUNTS = [
    Decimal(_NUMBERS.randrange(-(10 ** (n % 17)), 10 ** (n % 17))) / 10**6 for n in range(500)
]


def _asked(connection: psycopg.Connection, expression: sql.SQL, numbers: list[Any]) -> list[str]:
    query = sql.SQL("SELECT {} FROM unnest(%s) WITH ORDINALITY AS u(x, n) ORDER BY n")
    return [text for (text,) in connection.execute(query.format(expression), [numbers]).fetchall()]


def _texts(values: list[Any], kind: pa.DataType) -> list[str]:
    texts = column_texts(pa.array(values, kind)).cast(pa.string())
    return [str(text) for text in texts.to_pylist()]


def test_the_lakes_texts_are_those_of_postgres(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        day = sql.SQL("format('%%s', date '1970-01-01' + x::int)")
        assert _texts(_DAYS, pa.date32()) == _asked(connection, day, _DAYS)
        moment = sql.SQL(
            "format('%%s', timestamp '1970-01-01' + make_interval("
            "days => (x / 86400000000)::int, secs => (x %% 86400000000) / 1e6))"
        )
        expected = _asked(connection, moment, _MOMENTS)
        assert _texts(_MOMENTS, pa.timestamp("us")) == expected
        utc = [f"{t[:-3]}+00 BC" if t.endswith(" BC") else f"{t}+00" for t in expected]
        assert _texts(_MOMENTS, pa.timestamp("us", tz="UTC")) == utc
        for numbers in (
            _AMOUNTS,
            [abs(amount) for amount in _AMOUNTS],
            [*_AMOUNTS, Decimal(10**30)],
        ):
            amount = sql.SQL("format('%%s', x::numeric(38, 6))")
            expected = _asked(connection, amount, numbers)
            assert _texts(numbers, pa.decimal128(38, 6)) == expected
        double = sql.SQL("encode(float8send(x), 'hex')")
        assert _texts(_FLOATS, pa.float64()) == _asked(connection, double, _FLOATS)
