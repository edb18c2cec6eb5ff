"""Values that Python cannot read or Postgres cannot hold end nobody's control of other streams."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tailrace.control.stream_reports import Tally
from tailrace.control.streams import Status, read_streams
from tailrace.errors import SinkError
from tailrace.storage import Store
from tailrace.streams.stream import StreamState
from tests.capture.running import wait_until
from tests.server import Database
from tests.streams.control.test_control import INSERT, SOURCE, FakePlace, Node, running


@pytest.mark.parametrize("options", ['{"a": 1e5000}', f'{{"a": {"[" * 5000}{"]" * 5000}}}'])
def test_f065_json_that_python_cannot_read_holds_up_no_other_stream(
    database: Database, conn: psycopg.Connection, store: Store, options: str
) -> None:
    conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
    node = Node(database.dsn, store)
    with running(node):
        wait_until(lambda: node.leads("orders"))
        conn.execute(
            "INSERT INTO tailrace.streams (name, sink, options) VALUES (%s, %s, %s)",
            ("odd", Jsonb({"type": "memory"}), options),
        )
        conn.execute("UPDATE tailrace.streams SET paused = true WHERE name = 'orders'")
        wait_until(lambda: (wish := node.wish("orders")) is not None and wish.is_paused)


def test_a_reason_that_postgres_cannot_hold_is_told_as_far_as_it_can(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    for name in ("orders", "other"):
        conn.execute(INSERT, (name, ["public.orders"], Jsonb({"type": "memory"})))
    node = Node(database.dsn, store)
    with running(node):
        wait_until(lambda: node.leads("orders") and node.leads("other"))
        odd = SinkError("answered 500: a\0b\udcff", retry=True)
        for wish, error in zip(node.control.wishes, (odd, None), strict=True):
            state = StreamState(wish.name, None, error, is_stopped=False)
            node.places.append(FakePlace(wish, state, Tally()))
        wait_until(lambda: read_streams(conn, SOURCE)[0].reason == "answered 500: a\ufffdb?")
        wait_until(lambda: read_streams(conn, SOURCE)[1].status is Status.HEALTHY)
