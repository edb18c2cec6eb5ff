"""The demo's gauges: rates of the last seconds, rows of the lake from its metadata alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tailrace.cli.gauges import LakeRows, Rate


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate(5.0)
    assert rate.per_s(100.0, 1000) == 0
    assert rate.per_s(101.0, 1200) == 200
    for second in range(2, 30):
        rate.per_s(100.0 + second, 1200 + 10 * second)
    assert rate.per_s(130.0, 1200 + 10 * 30) == 10


def test_rows_of_a_lake_table_are_counted_as_it_changes(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    rows = LakeRows(uri)
    assert rows.count() is None
    write_deltalake(uri, pa.table({"id": [1, 2, 3]}))
    assert rows.count() == 3
    DeltaTable(uri).delete("id = 2")
    assert rows.count() == 2
