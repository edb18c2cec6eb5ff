"""Random rows through triggers and through the WAL are the same frames, byte for byte, whether the
buffer is streamed or drained.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from tailrace.capture.buffers.copying import read_buffer
from tailrace.capture.drains.outstanding import Outstanding
from tailrace.control.schema import migrate
from tailrace.postgres.buffer import read_buffers
from tailrace.postgres.frames import Frames
from tests.capture.buffers.test_translate import said, without
from tests.capture.tracked import buffer_of, control, oid_of, track, translator
from tests.decode.kinds import KINDS
from tests.decode.live import Live
from tests.decode.streams import Draw
from tests.server import VERSIONS, Database, Servers

_NAMES = ["a", "B", "c.d", "e f", 'g"h', "ü", "🙂", "select", "i'j", "%s"]
IDENTITIES = ["DEFAULT", "FULL"]


@pytest.fixture(params=VERSIONS)
def source(request: pytest.FixtureRequest, source_servers: Servers) -> Iterator[Database]:
    """A fresh database on each version."""
    with source_servers(request.param).database() as database:
        yield database


@st.composite
def _tables(draw: Draw) -> tuple[str, list[tuple[str, list[str | None]]]]:
    """A replica identity, and some types, each with the texts of its column."""
    count = draw(st.integers(1, 5))
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=len(_NAMES)))
    columns = [
        (name, draw(st.lists(KINDS[name].texts, min_size=count, max_size=count))) for name in names
    ]
    return draw(st.sampled_from(IDENTITIES)), columns


def _change(app: psycopg.Connection, columns: list[str]) -> None:
    """Everything that can become of a row: others' values, NULLs, another key, its end."""
    listed = sql.SQL(", ").join(
        sql.SQL("{0} = (SELECT {0} FROM t AS o WHERE o.id > t.id ORDER BY o.id LIMIT 1)").format(
            sql.Identifier(name)
        )
        for name in columns
    )
    app.execute(sql.SQL("UPDATE t SET {}").format(listed))
    app.execute("UPDATE t SET id = id + 1000 WHERE id % 2 = 0")
    app.execute("DELETE FROM t WHERE id % 3 = 0")
    app.execute("TRUNCATE t")


def _rows(frames: Frames) -> list[bytes]:
    """Rows and shapes; transactions differ where drains come from, types where buffers do."""
    return [frame for frame in said(frames) if frame[:1] in b"RIUDT"]


def _assert_same(live: Live, frames: Frames) -> None:
    app, table = live.app, oid_of(live.app, "public.t")
    buffer = oid_of(app, buffer_of(app, "public.t"))
    streamed = _rows(without(frames, buffer, *control(app)))
    buffered = without(frames, table, *control(app))
    assert _rows(translator(app).translate(buffered)) == streamed
    oid = read_buffers(live.ours)[table]
    runs = read_buffer(live.ours, table, oid, Outstanding(), lambda: None, lambda *_: None)
    assert _rows(translator(app).translate(Frames.concat(list(runs)))) == streamed


def test_random_rows_are_the_same_by_triggers_and_by_the_wal(source: Database) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_tables())
    def check(given: tuple[str, list[tuple[str, list[str | None]]]]) -> None:
        identity, table = given
        columns = {name: kind for name, (kind, _) in zip(_NAMES, table, strict=False)}
        live.create("t", columns)
        live.app.execute(sql.SQL("ALTER TABLE t REPLICA IDENTITY {}").format(sql.SQL(identity)))
        track(live.app, "public.t", watches_ddl=False)
        try:
            live.frames()
            for row in range(len(table[0][1])):
                texts = {name: texts[row] for name, (_, texts) in zip(_NAMES, table, strict=False)}
                live.insert("t", {n: (k, KINDS[k], texts[n]) for n, k in columns.items()})
            _change(live.app, list(columns))
            _assert_same(live, live.frames())
        finally:
            live.app.execute("DROP TABLE t")
            live.frames()

    with Live.on(source) as live:
        migrate(live.ours)
        check()


@pytest.mark.parametrize("identity", IDENTITIES)
def test_values_at_the_edge_of_every_type_are_the_same(source: Database, identity: str) -> None:
    """So many columns that rows are buffered whole."""
    with Live.on(source) as live:
        migrate(live.ours)
        live.create("t", {kind: kind for kind in KINDS})
        live.app.execute(sql.SQL("ALTER TABLE t REPLICA IDENTITY {}").format(sql.SQL(identity)))
        track(live.app, "public.t", watches_ddl=False)
        live.frames()
        for kind, known in KINDS.items():
            for text in (*known.held, *known.unheld, None):
                live.insert("t", {kind: (kind, known, text)})
        _change(live.app, list(KINDS))
        _assert_same(live, live.frames())
