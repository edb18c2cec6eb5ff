"""Random tables of every type through a live Postgres and back: what is decoded of the stream and
of COPY, written as text again, is the source's own text.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decode.kinds import KINDS
from tests.decode.live import Live
from tests.decode.streams import Draw
from tests.server import Database

_NAMES = ["a", "B", "c.d", "e f", 'g"h', "ü", "🙂", "select", "i'j", "%s"]


@st.composite
def _tables(draw: Draw) -> list[tuple[str, list[str | None]]]:
    """Some types, each with the texts of its column."""
    count = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=len(_NAMES)))
    return [
        (name, draw(st.lists(KINDS[name].texts, min_size=count, max_size=count))) for name in names
    ]


def test_f063_random_tables_come_back_as_the_sources_own_texts(database: Database) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_tables())
    def check(table: list[tuple[str, list[str | None]]]) -> None:
        columns = {name: kind for name, (kind, _) in zip(_NAMES, table, strict=False)}
        live.create("t", columns)
        try:
            for row in range(len(table[0][1])):
                texts = {name: texts[row] for name, (_, texts) in zip(_NAMES, table, strict=False)}
                live.insert("t", {n: (k, KINDS[k], texts[n]) for n, k in columns.items()})
            (changes,) = live.streamed()
            live.assert_round_trip("t", changes)
            for name, kind in columns.items():
                assert changes.rows.schema.field(name).type == KINDS[kind].arrow, kind
        finally:
            live.app.execute("DROP TABLE t")
            live.streamed()

    with Live.on(database) as live:
        check()
