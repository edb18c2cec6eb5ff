"""What a lake gives back, whichever engine wrote it, is what the source has: every type, at its
edges.
"""

from __future__ import annotations

from psycopg import sql

from tailrace.model import Lsn, Relation
from tailrace.sinks import Load
from tailrace.verify.at_rest import compare_at_rest
from tests.decode.kinds import KINDS
from tests.decode.live import ODD, Live
from tests.server import Database, both_versions
from tests.sinks.harness import DeltaHarness
from tests.sinks.source import batch_of


@both_versions
def test_f063_f069_values_of_every_type_come_back_from_the_lake(
    lake: DeltaHarness, database: Database
) -> None:
    with Live.on(database) as live:
        live.insert_edges(ODD)
        (added,) = live.streamed()
        lake.sink.write(batch_of(1, added))
        # Now every value goes through a MERGE.
        for update in (
            sql.SQL('UPDATE {} SET "bool" = NOT "bool" WHERE id % 2 = 0'),
            sql.SQL("UPDATE {} SET id = -id WHERE id % 3 = 0"),
        ):
            live.app.execute(update.format(sql.Identifier(ODD)))
        (changed,) = live.streamed()
        lake.sink.write(batch_of(2, changed, known=[f"public.{ODD}"]))
        _assert_equal(lake, live, added.relation)
        # And every value in a base.
        load = Load("lake", 3, added.relation, Lsn(0x9000), 0)
        lake.sink.load(load, [live.base(ODD, added.relation)])
        _assert_equal(lake, live, added.relation)
    # The product's own comparison finds none that differs either.
    (result,) = compare_at_rest(database.dsn, lake.path, [f"public.{ODD}"])
    assert result.equal, result


def _assert_equal(lake: DeltaHarness, live: Live, relation: Relation) -> None:
    rows = lake.table(relation).to_pyarrow_table().sort_by("id")
    for kind, texts in zip(KINDS, live.texts(ODD), strict=True):
        assert live.rendered(rows, kind) == texts, kind
