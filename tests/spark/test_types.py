"""Every type through the `tailrace` format: what Spark holds of a base and of the changes is what
the source has.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tailrace.log import Base, BaseOrigin, Writer
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import put_base, put_base_part
from tailrace.postgres.description import describe
from tailrace.postgres.table_shape import read_shape
from tailrace.spark import TailraceDataSource
from tailrace.storage import FileStore, Store
from tests.decode.kinds import KINDS
from tests.decode.live import ODD, Live
from tests.log.making import SOURCE, begin
from tests.server import Database, both_versions


def _put_base(store: Store, live: Live, writer: Writer) -> None:
    (oid,) = live.ours.execute(
        "SELECT oid::bigint FROM pg_class WHERE relname = %s", [ODD]
    ).fetchone() or (0,)
    shape = read_shape(live.ours, oid)
    assert shape is not None
    identity = BaseIdentity(SOURCE, oid, writer.position, "made")
    part = put_base_part(store, identity, live.lines(ODD), stretch=0, number=0)
    base = Base(
        source=SOURCE,
        relation=shape.relation,
        frame=shape.frame,
        position=writer.position,
        taken_ts_us=0,
        origin=BaseOrigin.SNAPSHOT,
        parts=(part,),
    )
    put_base(store, base)


@both_versions
def test_f063_f069_values_of_every_type_reach_spark(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "log")
    spark.dataSource.register(TailraceDataSource)
    with Live.on(database) as live:
        live.insert_edges(ODD)
        writer = Writer(
            store, begin(store), writer_id="w", describe=lambda new: describe(live.ours, new)
        )
        writer.append(live.frames())
        _put_base(store, live, writer)

        def read(**options: str) -> pa.Table:
            asked = spark.read.format("tailrace").options(log=store.url, table=f"public.{ODD}")
            return asked.options(**options).load().toArrow().sort_by("id")

        changes, base = read(startingOffset="earliest"), read()
        assert set(changes["_origin"].to_pylist()) == {"wal"}
        assert set(base["_origin"].to_pylist()) == {"snapshot"}
        for kind, texts in zip(KINDS, live.texts(ODD), strict=True):
            assert live.rendered(changes, kind) == texts, kind
            assert live.rendered(base, kind) == texts, kind
