"""Rows of an older shape are read under a newer one exactly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tailrace.decode import TableChanges, change_schema
from tailrace.errors import SchemaError
from tailrace.model import Column, PgType, Relation
from tailrace.spark.fit import fitted
from tests.spark.made_log import NUMERIC_12_2, ORDERS

NUMERIC_14_4 = ((14 << 16) | 4) + 4
NUMERIC_12_4 = ((12 << 16) | 4) + 4


def _changes(relation: Relation, **values: object) -> TableChanges:
    row = {
        **dict.fromkeys(change_schema(relation).names),
        **values,
        "_op": "update",
        "_unchanged": ["note"],
        "_before": {**dict.fromkeys(relation.column_names), **values},
        "_text": [("amount", "NaN")],
    }
    return TableChanges(relation, pa.Table.from_pylist([row], schema=change_schema(relation)))


def _spark_arrow(relation: Relation) -> pa.Schema:
    """The schema that Spark asks for."""
    return to_arrow_schema(from_arrow_schema(change_schema(relation)), timezone="UTC")


def _retyped(type_oid: int, typmod: int = -1) -> Relation:
    column = Column("amount", type_oid, typmod, False)
    return replace(ORDERS, columns=(*ORDERS.columns[:2], column))


def test_rows_of_the_same_shape_keep_every_value() -> None:
    changes = _changes(ORDERS, id=1, note="x", amount=Decimal("1.50"))
    found = fitted(changes, _spark_arrow(ORDERS))
    assert found.schema.equals(_spark_arrow(ORDERS))
    assert found.to_pylist() == changes.rows.to_pylist()


def test_column_that_came_later_is_null_and_one_that_is_gone_is_left_out() -> None:
    added = Column("added", PgType.DATE, -1, False)
    newer = replace(ORDERS, columns=(ORDERS.columns[0], added))
    row = fitted(_changes(ORDERS, id=1, note="x"), _spark_arrow(newer)).to_pylist()[0]
    assert list(row)[:2] == ["id", "added"]
    assert (row["id"], row["added"]) == (1, None)
    assert row["_before"] == {"id": 1, "added": None}


def test_missing_old_row_stays_missing() -> None:
    changes = _changes(ORDERS, id=1)
    without = changes.rows.set_column(
        changes.rows.column_names.index("_before"),
        changes.rows.schema.field("_before"),
        pa.nulls(1, changes.rows.schema.field("_before").type),
    )
    newer = replace(ORDERS, columns=ORDERS.columns[:1])
    found = fitted(TableChanges(ORDERS, without), _spark_arrow(newer))
    assert found.to_pylist()[0]["_before"] is None


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (_retyped(PgType.INT2), _retyped(PgType.INT8), 7, 7),
        (_retyped(PgType.INT4), _retyped(PgType.TEXT), -7, "-7"),
        (_retyped(PgType.FLOAT4), _retyped(PgType.FLOAT8), 0.5, 0.5),
        (
            _retyped(PgType.NUMERIC, NUMERIC_12_2),
            _retyped(PgType.NUMERIC, NUMERIC_14_4),
            Decimal("1234567890.12"),
            Decimal("1234567890.1200"),
        ),
        (
            _retyped(PgType.NUMERIC, NUMERIC_12_2),
            _retyped(PgType.NUMERIC),
            Decimal("1.50"),
            "1.50",
        ),
    ],
)
def test_widened_type_keeps_the_value(
    old: Relation, new: Relation, value: object, expected: object
) -> None:
    row = fitted(_changes(old, amount=value), _spark_arrow(new)).to_pylist()[0]
    assert row["amount"] == row["_before"]["amount"] == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_retyped(PgType.INT8), _retyped(PgType.INT4)),
        (_retyped(PgType.FLOAT8), _retyped(PgType.FLOAT4)),
        (_retyped(PgType.FLOAT8), _retyped(PgType.TEXT)),
        (_retyped(PgType.TEXT), _retyped(PgType.INT8)),
        (_retyped(PgType.NUMERIC, NUMERIC_12_2), _retyped(PgType.NUMERIC, NUMERIC_12_4)),
        (_retyped(PgType.DATE), _retyped(PgType.TIMESTAMPTZ)),
    ],
)
def test_any_other_type_ends_the_read(old: Relation, new: Relation) -> None:
    with pytest.raises(SchemaError, match=r"public\.orders\.amount was .* and is .* in this read"):
        fitted(_changes(old), _spark_arrow(new))
