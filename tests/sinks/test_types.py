"""What a lake gives back, whichever engine wrote it, is what the source has: every type, at its
edges.
"""

from __future__ import annotations

from tests.decode.kinds import KINDS
from tests.decode.live import Live
from tests.server import Database
from tests.sinks.harness import DeltaHarness
from tests.sinks.source import batch_of


def test_f063_values_of_every_type_come_back_from_the_lake(
    lake: DeltaHarness, database: Database
) -> None:
    with Live.on(database) as live:
        live.insert_edges("edge")
        (added,) = live.streamed()
        lake.sink.write(batch_of(1, added))
        # Now every value goes through a MERGE.
        live.app.execute("""UPDATE edge SET "bool" = NOT "bool" WHERE id % 2 = 0""")
        live.app.execute("UPDATE edge SET id = -id WHERE id % 3 = 0")
        (changed,) = live.streamed()
        lake.sink.write(batch_of(2, changed, known=["public.edge"]))
        rows = lake.table(added.relation).to_pyarrow_table().sort_by("id")
        for kind, texts in zip(KINDS, live.texts("edge"), strict=True):
            assert live.rendered(rows, kind) == texts, kind
