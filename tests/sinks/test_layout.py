"""Lake tables laid out as the configuration says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.errors import SchemaError
from tailrace.sinks.delta import Mode
from tests.sinks.conftest import SPARK
from tests.sinks.harness import QUIET, DeltaHarness
from tests.sinks.source import Source, batch_of, load_of

PARTED = replace(QUIET, partition_by={"public.orders": ("part",)})


@pytest.mark.parametrize("engine", ["deltalake", pytest.param("delta-spark", marks=SPARK)])
@pytest.mark.parametrize("mode", list(Mode))
def test_rows_lie_in_the_partition_of_their_value_and_move_with_it(
    tmp_path: Path, request: pytest.FixtureRequest, engine: str, mode: Mode
) -> None:
    session = request.getfixturevalue("delta_session") if engine == "delta-spark" else None
    lake = DeltaHarness(str(tmp_path), session, replace(PARTED, mode=mode))
    source = Source()
    for row in range(6):
        source.insert(id=row, part=f"p{row % 2}", doc="large", n=row)
    lake.sink.write(batch_of(1, source.take()))
    source.update(0, part="p1", unchanged=["doc"])
    source.update(1, part=None, n=10, unchanged=["doc"])
    source.delete(2)
    lake.sink.write(batch_of(2, source.take()))
    table = lake.table(source.relation)
    assert table.metadata().partition_columns == ["part"]
    if mode is not Mode.APPEND:
        assert lake.rows(source.relation) == source.expected()
    source.truncate()
    source.insert(id=9, part="p9")
    lake.sink.write(batch_of(3, source.take()))
    if mode is not Mode.APPEND:
        assert lake.rows(source.relation) == source.expected()
    lake.close()


def test_partitions_that_differ_stop_changes_and_a_load_makes_them(tmp_path: Path) -> None:
    plain = DeltaHarness(str(tmp_path), None)
    parted = DeltaHarness(str(tmp_path), None, PARTED)
    source = Source()
    source.insert(id=1, part="a")
    plain.sink.write(batch_of(1, source.take()))
    source.insert(id=2, part="b")
    changes = source.take()
    with pytest.raises(SchemaError, match="partitioned by nothing, not by part") as caught:
        parted.sink.write(batch_of(2, changes))
    assert "tailrace snapshot public.orders" in caught.value.hint
    parted.sink.load(load_of(2, source), source.base())
    source.insert(id=3, part="a")
    parted.sink.write(batch_of(3, source.take()))
    assert parted.table(source.relation).metadata().partition_columns == ["part"]
    assert parted.rows(source.relation) == source.expected()
    for lake in (plain, parted):
        lake.close()


@pytest.mark.parametrize("option", ["partition_by", "cluster_by"])
def test_column_that_the_table_does_not_have_is_named(tmp_path: Path, option: str) -> None:
    wrong = {"public.orders": ("region",)}
    options = (
        replace(QUIET, partition_by=wrong)
        if option == "partition_by"
        else replace(QUIET, cluster_by=wrong)
    )
    lake = DeltaHarness(str(tmp_path), None, options)
    source = Source()
    source.insert(id=1)
    with pytest.raises(SchemaError, match="no column region") as caught:
        lake.sink.write(batch_of(1, source.take()))
    assert option in caught.value.hint
    lake.close()
