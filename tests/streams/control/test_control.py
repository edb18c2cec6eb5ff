"""Streams follow the control schema: what is written there takes effect, and its absence none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from tailrace.control.stream_reports import Tally
from tailrace.control.streams import (
    STREAMS_CHANNEL,
    Definition,
    Origin,
    Status,
    declare,
    read_streams,
    reporting,
)
from tailrace.errors import ConfigError, OffsetOutOfRange, SinkError
from tailrace.log.retention import reader_positions
from tailrace.log.wanted import SLOT_LOST, WantedBase, want_base
from tailrace.model import Lsn, Offset
from tailrace.postgres.lock_session import LockSession
from tailrace.sinks.memory import MemorySink
from tailrace.storage import Store
from tailrace.streams import Stream, StreamState, control, sights
from tailrace.streams.control import Control
from tailrace.streams.delivery import Delivered
from tailrace.streams.kept_roster import Kept
from tailrace.streams.place import Wish
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay.keys import Keys
from tailrace.streams.taken import Taken
from tests.capture.running import PATIENCE_S, wait_until
from tests.proxy import Pooler, Proxy
from tests.server import Database

SOURCE: Final = "tailrace_main"
MEMORY: Final = Definition(("public.*",), {"type": "memory"})
LAKE: Final = Kept("lake", Origin.FILE, MEMORY, paused=False, revision=0)
INSERT: Final = "INSERT INTO tailrace.streams (name, tables, sink) VALUES (%s, %s, %s)"


class FakePlace:
    """What control sees of a stream that is delivered."""

    epoch = 3
    is_fenced = False

    def __init__(self, wish: Wish, state: StreamState, tally: Tally) -> None:
        self.wish = wish
        self.state = state
        self.tally = tally


class Node:
    """A pipeline's control, without the pipeline."""

    def __init__(self, dsn: str, store: Store, *declared: Kept, sender_timeout_s: int = 5) -> None:
        self.dsn = dsn
        self.places: list[FakePlace] = []
        self.control = Control(
            lambda: LockSession(self.dsn, sender_timeout_s=sender_timeout_s),
            store,
            source=SOURCE,
            declared=declared,
            resolve=self._resolve,
        )

    def wish(self, name: str) -> Wish | None:
        return next((wish for wish in self.control.wishes if wish.name == name), None)

    def leads(self, name: str) -> bool:
        return self.control.leads(name)

    def stands_by(self, name: str) -> bool:
        return not self.leads(name)

    def placed(self) -> Sequence[FakePlace]:
        return self.places

    def _resolve(self, kept: Kept) -> Stream:
        if kept.definition.where == "bad":
            raise ConfigError("the where is bad")
        return Stream(kept.name, kept.definition.tables, lambda _: MemorySink())


@contextmanager
def running(*nodes: Node) -> Iterator[None]:
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.control.stop)
            node.control.start(node.placed)
        yield


def test_what_sql_wishes_is_noticed_by_a_word(
    database: Database, conn: psycopg.Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who only reads the table now and then would notice none of it while this test lasts.
    monkeypatch.setattr(control, "TURN_S", 120.0)
    node = Node(database.dsn, store, sender_timeout_s=120)

    def note() -> object:
        return read_streams(conn, SOURCE)[0].state["replay_note"]

    with running(node):
        conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
        wait_until(lambda: node.leads("orders"))
        first = node.wish("orders")
        assert first is not None and first.runnable is not None
        conn.execute("UPDATE tailrace.streams SET paused = true")
        wait_until(lambda: (wish := node.wish("orders")) is not None and wish.is_paused)
        conn.execute("UPDATE tailrace.streams SET paused = false, tables = '{shop.*}'")
        wait_until(lambda: (wish := node.wish("orders")) is not None and wish.runnable is not None)
        changed = node.wish("orders")
        assert changed is not None and changed.stream is not None
        assert changed.stream.tables == ("shop.*",) and changed.revision > first.revision
        conn.execute("UPDATE tailrace.streams SET replay_from_ts = now() - interval '1 minute'")
        wait_until(lambda: str(note()).startswith("asked as "))
        conn.execute("UPDATE tailrace.streams SET \"where\" = 'bad'")
        wait_until(lambda: (wish := node.wish("orders")) is not None and wish.error is not None)
        conn.execute("DELETE FROM tailrace.streams")
        wait_until(lambda: node.wish("orders") is None)
        # A last word, so that it does not sleep on when it is told to stop.
        monkeypatch.undo()
        conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
        wait_until(lambda: node.leads("orders"))


def test_what_sql_wishes_is_noticed_although_no_word_of_it_comes(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    conn.execute("ALTER TABLE tailrace.streams DISABLE TRIGGER tell_made")
    conn.execute("ALTER TABLE tailrace.streams DISABLE TRIGGER tell_changed")
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(STREAMS_CHANNEL)))
    node = Node(database.dsn, store)
    with running(node):
        conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
        wait_until(lambda: node.leads("orders"))
        conn.execute("UPDATE tailrace.streams SET replay_from_ts = now() - interval '1 minute'")
        wait_until(lambda: read_streams(conn, SOURCE)[0].state["replay_note"] is not None)
        conn.execute("UPDATE tailrace.streams SET paused = true")
        wait_until(lambda: (wish := node.wish("orders")) is not None and wish.is_paused)
        conn.execute("DELETE FROM tailrace.streams")
        wait_until(lambda: node.wish("orders") is None)
    assert not list(conn.notifies(timeout=0)), "nobody was told"


def test_a_stream_that_sql_deletes_is_ended_also_if_no_pipeline_runs(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    first = Node(database.dsn, store, LAKE)
    with running(first):
        wait_until(lambda: first.leads("orders") and first.leads("lake"))
    for name in ("orders", "lake"):
        StreamRecord(store, name).begin(Offset.whole(Lsn(0x1000)), writer="a")
    conn.execute("DELETE FROM tailrace.streams WHERE origin = 'sql'")
    with reporting(conn):
        conn.execute("DELETE FROM tailrace.streams WHERE origin = 'file'")
    with running(Node(database.dsn, store)):
        wait_until(lambda: "orders" not in reader_positions(store))
    # The file may declare it again: until somebody says `stream rm`, the log is kept for it.
    assert "lake" in reader_positions(store)


def test_a_stream_that_is_made_again_at_once_under_its_name_is_another_one(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
    first, second = Node(database.dsn, store), Node(database.dsn, store)
    with running(first, second):
        wait_until(lambda: first.leads("orders"))
        (wish,) = first.control.wishes
        first.places = [FakePlace(wish, StreamState("orders", None, None, False), Tally())]
        StreamRecord(store, "orders").begin(Offset.whole(Lsn(0x1000)), writer="a")
        with conn.transaction():
            conn.execute("DELETE FROM tailrace.streams")
            conn.execute(INSERT, ("orders", ["shop.*"], Jsonb({"type": "memory"})))
        # Nothing is wished of the old one, and while it comes to its end nobody begins another.
        wait_until(lambda: first.wish("orders") is None)
        wait_until(lambda: second.wish("orders") is None)
        assert "orders" in reader_positions(store)
        first.places = []
        wait_until(lambda: first.leads("orders") or second.leads("orders"))
        assert "orders" not in reader_positions(store)
        (led,) = [node for node in (first, second) if node.leads("orders")]
        (wish,) = led.control.wishes
        assert wish.runnable is not None and wish.runnable.tables == ("shop.*",)


def test_f082_of_two_nodes_one_leads_each_stream_and_the_other_takes_over(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    first, second = Node(database.dsn, store, LAKE), Node(database.dsn, store, LAKE)
    with running(first, second):
        wait_until(lambda: first.leads("lake"))
        assert not second.leads("lake")
        assert (wish := second.wish("lake")) is not None and wish.runnable is None
        first.control.stop()
        wait_until(lambda: second.leads("lake"))


def test_streams_flow_on_while_the_database_is_away(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
    conn.execute(INSERT, ("still", ["public.orders"], Jsonb({"type": "memory"})))
    conn.execute("UPDATE tailrace.streams SET paused = true WHERE name = 'still'")
    node, reachable = Node(database.dsn, store, LAKE), database.dsn
    with running(node):
        wait_until(lambda: node.leads("lake") and node.leads("orders"))
        before = node.wish("lake")
        node.dsn = "host=127.0.0.1 port=1"
        conn.execute("""SELECT pg_terminate_backend(pid) FROM pg_locks
                         WHERE locktype = 'advisory' AND pid <> pg_backend_pid()""")
        wait_until(lambda: bool(node.control._said))
        assert node.leads("lake") and node.leads("orders")
        node.dsn = reachable
        wait_until(lambda: not node.control._said)
        # The same run goes on.
        assert node.wish("lake") == before
    # One that starts meanwhile knows from the log what it was to deliver.
    alone = Node("host=127.0.0.1 port=1", store, LAKE)
    with running(alone):
        assert alone.leads("lake") and alone.leads("orders")
        assert (wish := alone.wish("still")) is not None and wish.is_paused


def test_f082_a_pipeline_that_was_fenced_leads_again_only_with_the_lock(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    alone, leader = Node("host=127.0.0.1 port=1", store, LAKE), Node(database.dsn, store, LAKE)
    with running(alone, leader):
        for node in (alone, leader):
            wait_until(partial(node.leads, "lake"))
            wish = node.wish("lake")
            assert wish is not None
            node.control.was_fenced(wish)
            node.control.was_fenced(wish)
            wait_until(partial(node.stands_by, "lake"))
        wait_until(lambda: leader.leads("lake"))
        assert (again := leader.wish("lake")) is not None and again.term == 1
        assert not alone.leads("lake")


def test_f014_a_stream_that_waits_or_fell_off_the_log_is_told_in_the_table_when_its_row_is_free(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    node = Node(database.dsn, store, LAKE)

    def row() -> tuple[Status, str | None, object, object]:
        [found] = read_streams(conn, SOURCE)
        return (
            found.status,
            found.reason,
            found.state["position"],
            found.state["change_count"],
        )

    with running(node):
        wait_until(lambda: node.leads("lake"))
        wish = node.wish("lake")
        assert wish is not None
        at = Delivered(Offset.whole(Lsn(0x2000)))
        state = StreamState("lake", at, None, is_stopped=False)
        place = FakePlace(wish, state, Tally(2, 10))
        node.places = [place]
        none = "none of its tables is taken up yet: public.*"
        wait_until(lambda: row() == (Status.HEALTHY, none, "0/2000", 10))
        state = replace(state, taken=(Taken(7, "public", "t", Lsn(1), at.position),))
        place.state = state
        wait_until(lambda: row() == (Status.HEALTHY, None, "0/2000", 10))
        down = SinkError("the sink is down", hint="wait", retry=True)
        with conn.transaction():
            conn.execute("SELECT FROM tailrace.streams FOR UPDATE")
            place.state, place.tally = replace(state, error=down), Tally(3, 15, replayed_count=4)
            time.sleep(0.1)
        wait_until(lambda: row() == (Status.FAILOVER, "the sink is down (wait)", "0/2000", 15))
        assert read_streams(conn, SOURCE)[0].state["replayed_count"] == 4
        gone = OffsetOutOfRange("the log begins later")
        place.state = replace(state, error=gone, is_stopped=True)
        wait_until(lambda: row()[:2] == (Status.STOPPED, "the log begins later"))
    # Nobody delivers it any more: what had stopped keeps its reason.
    assert row()[:2] == (Status.STOPPED, "the log begins later")


def test_f077_a_lost_slot_shows_in_streams_over_its_tables_until_the_new_base_is_delivered(
    database: Database, conn: psycopg.Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sights, "COUNT_S", 0.0)
    conn.execute(
        """INSERT INTO tailrace.change_tracking
                  (table_oid, source, schema_name, table_name, cdc_mode)
           VALUES (7, %s, 'public', 'orders', 'WAL')""",
        (SOURCE,),
    )
    node = Node(database.dsn, store, LAKE, replace(LAKE, name="other"))
    with reporting(conn):
        for name in ("lake", "other"):
            declare(conn, SOURCE, name, MEMORY)

    def state(name: str, oid: int, generation: int) -> StreamState:
        taken = Taken(oid, "public", "orders", Lsn(generation), Offset.whole(Lsn(generation)))
        at = Delivered(Offset.whole(Lsn(0x3000)))
        return StreamState(name, at, None, is_stopped=False, taken=(taken,))

    def told() -> dict[str, tuple[Status, str | None]]:
        return {row.name: (row.status, row.reason) for row in read_streams(conn, SOURCE)}

    with running(node):
        wait_until(lambda: node.leads("lake") and node.leads("other"))
        lake, other = node.control.wishes
        place = FakePlace(lake, state("lake", 7, 0x1000), Tally())
        node.places = [place, FakePlace(other, state("other", 8, 0x1000), Tally())]
        # There is no such slot, and capture has not noticed.
        wait_until(lambda: {each[0] for each in told().values()} == {Status.SLOT_RECOVERY})
        # As capture does: the table is to be read anew.
        want_base(store, WantedBase(7, Lsn(0x2000), SLOT_LOST))
        conn.execute("DELETE FROM tailrace.change_tracking")
        wait_until(lambda: told()["other"] == (Status.HEALTHY, None))
        reason = "the slot was lost: public.orders waits for a new base"
        assert told()["lake"] == (Status.SLOT_RECOVERY, reason)
        place.state = state("lake", 7, 0x2000)
        wait_until(lambda: told()["lake"] == (Status.HEALTHY, None))


def test_a_replay_that_is_asked_for_in_sql_is_taken_up(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    with reporting(conn):
        declare(conn, SOURCE, "lake", MEMORY)
    with running(Node(database.dsn, store, LAKE)):
        conn.execute("UPDATE tailrace.streams SET replay_from_ts = now() - interval '1 minute'")
        wait_until(lambda: read_streams(conn, SOURCE)[0].state["replay_note"] is not None)


@pytest.mark.parametrize("time", ["-infinity", "infinity", "0044-03-15 BC", "20000-01-01"])
def test_f065_a_time_that_python_cannot_read_is_refused_and_holds_up_nothing(
    database: Database, conn: psycopg.Connection, store: Store, time: str
) -> None:
    for name in ("odd", "orders"):
        conn.execute(INSERT, (name, ["public.orders"], Jsonb({"type": "memory"})))
    # As a row of before it was looked for, or of who goes round the trigger.
    conn.execute("ALTER TABLE tailrace.streams DISABLE TRIGGER check_stream")
    odd = "UPDATE tailrace.streams SET replay_from_ts = %s, created_at = %s WHERE name = 'odd'"
    conn.execute(odd, (time, time))
    conn.execute("ALTER TABLE tailrace.streams ENABLE TRIGGER check_stream")
    first, second = Node(database.dsn, store), Node(database.dsn, store)

    def note() -> str:
        return str(read_streams(conn, SOURCE)[0].state["replay_note"])

    with running(first, second):
        wait_until(lambda: first.leads("orders") and first.leads("odd"))
        wait_until(lambda: note().startswith("refused: ") and "available_from_ts" in note())
        assert read_streams(conn, SOURCE)[0].replay_from_ts is None
        first.control.stop()
        wait_until(lambda: second.leads("orders") and second.leads("odd"))


def test_a_request_of_one_stream_that_cannot_be_read_holds_up_no_replay_of_another(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    for name in ("bad", "orders"):
        conn.execute(INSERT, (name, ["public.orders"], Jsonb({"type": "memory"})))
    with reporting(conn):
        conn.execute("UPDATE tailrace.streams SET replay_note = 'asked as 20260101T000000-1'")
        conn.execute("UPDATE tailrace.streams SET replay_note = NULL WHERE name = 'orders'")
    store.put_new(Keys("bad").request(1), b"{}")
    ask = "UPDATE tailrace.streams SET replay_from_ts = now() - interval '1 minute'"
    with running(Node(database.dsn, store)):
        conn.execute(ask)
        wait_until(lambda: read_streams(conn, SOURCE)[1].state["replay_note"] is not None)


def test_f083_a_pooler_is_not_taken_for_postgres(
    database: Database, conn: psycopg.Connection, store: Store
) -> None:
    port = int(conninfo_to_dict(database.tcp_dsn)["port"] or 0)
    with Pooler(port) as pooler:
        node = Node(make_conninfo(database.tcp_dsn, port=pooler.port), store, LAKE)
        with running(node):
            assert "pooler" in node.control._said
            # One that comes between while streams flow stops none: the epoch fences who else does.
            assert node.leads("lake")


@contextmanager
def freezable(database: Database) -> Iterator[tuple[str, Proxy]]:
    """A way to the server that can stop carrying its answers."""
    port = int(conninfo_to_dict(database.tcp_dsn)["port"] or 0)
    with Proxy(port) as proxy:
        yield make_conninfo(database.tcp_dsn, port=proxy.port, sslmode="disable"), proxy


def is_done_in_time(act: Callable[[], None]) -> bool:
    """Whether it comes to its end by itself."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_a_server_that_does_not_answer_holds_up_no_end(
    database: Database, conn: psycopg.Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "STOP_S", 0.5)
    with freezable(database) as (dsn, proxy):
        node = Node(dsn, store, sender_timeout_s=120)
        conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
        node.control.start(node.placed)
        wait_until(lambda: node.leads("orders"))
        proxy.faults.frozen = True
        assert is_done_in_time(node.control.stop)


def test_a_server_that_does_not_answer_holds_up_no_beginning(
    database: Database, conn: psycopg.Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "STOP_S", 0.5)
    monkeypatch.setattr(control, "ANSWER_S", 0.5)
    with freezable(database) as (dsn, proxy):

        def freeze(_: object) -> None:
            proxy.faults.frozen = True

        monkeypatch.setattr(control, "refuse_pooler", freeze)
        node = Node(dsn, store, LAKE, sender_timeout_s=120)
        assert is_done_in_time(partial(node.control.start, node.placed))
        assert is_done_in_time(node.control.stop)
