"""Control waits for no store: a session whose thread is away for too long is ended by the server,
and every stream is led elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tailrace.control.stream_reports import Tally
from tailrace.control.streams import Status, read_streams
from tailrace.model import Lsn, Offset
from tailrace.postgres.lock_session import LockSession
from tailrace.storage import MemoryStore, Store
from tailrace.storage.store import Data, Entries
from tailrace.streams import StreamState
from tailrace.streams.delivery import Delivered
from tailrace.streams.taken import Taken
from tests.capture.running import wait_until
from tests.log.making import begin
from tests.server import Database
from tests.streams.control.test_control import INSERT, SOURCE, FakePlace, Node, running


class HangingStore(MemoryStore):
    """While it is `hanging`, no call returns; but those for the list of streams, which is small and
    needed only when one comes, changes or goes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hung = set[str]()
        self._is_let_go = threading.Event()
        self._is_let_go.set()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        self._is_let_go.clear()
        try:
            yield
        finally:
            self._is_let_go.set()

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        self._hang(key)
        super().put_new(key, data, is_bulk=is_bulk)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self._hang(key)
        return super().get(key, start=start, length=length)

    def list(self, prefix: str, *, after: str = "") -> Entries:
        self._hang(prefix)
        return super().list(prefix, after=after)

    def delete(self, keys: Iterable[str]) -> None:
        super().delete(keys)

    def _hang(self, key: str) -> None:
        if "roster" not in key and not self._is_let_go.is_set():
            self.hung.add(threading.current_thread().name)
            self._is_let_go.wait()


def _holders(conn: psycopg.Connection) -> set[int]:
    query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    return {pid for (pid,) in conn.execute(query)}


def test_f082_wishes_are_followed_and_locks_are_kept_while_the_store_does_not_answer(
    database: Database, conn: psycopg.Connection
) -> None:
    store = HangingStore()
    begin(store)
    node = Node(database.dsn, store)

    def told() -> dict[str, tuple[Status, object]]:
        rows = read_streams(conn, SOURCE)
        return {row.name: (row.status, row.state["change_count"]) for row in rows}

    with running(node):
        conn.execute(INSERT, ("orders", ["public.orders"], Jsonb({"type": "memory"})))
        wait_until(lambda: node.leads("orders"))
        (wish,) = node.control.wishes
        at = Offset.whole(Lsn(0x800))
        taken = (Taken(7, "public", "orders", Lsn(1), at),)
        state = StreamState("orders", Delivered(at), None, is_stopped=False, taken=taken)
        place = FakePlace(wish, state, Tally(1, 5))
        node.places = [place]
        wait_until(lambda: told()["orders"] == (Status.HEALTHY, 5))
        before = _holders(conn)
        with store.hanging():
            conn.execute("UPDATE tailrace.streams SET replay_from_ts = now() - interval '1 minute'")
            wait_until(lambda: store.hung == {"tailrace-watch", "tailrace-replays"})
            place.tally = Tally(2, 9)
            wait_until(lambda: told()["orders"] == (Status.HEALTHY, 9))
            conn.execute(INSERT, ("more", ["public.items"], Jsonb({"type": "memory"})))
            wait_until(lambda: node.leads("more"))
            conn.execute("UPDATE tailrace.streams SET paused = true WHERE name = 'orders'")
            wait_until(lambda: (seen := node.wish("orders")) is not None and seen.is_paused)
            assert _holders(conn) == before and len(before) == 1


def test_f105_a_wish_of_which_no_word_comes_is_read_within_two_seconds(
    database: Database, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a word ends the wait is seen where nothing else would, by who waits for two minutes."""
    waits: list[tuple[float | None, int | None]] = []

    def watched() -> LockSession:
        session = LockSession(database.dsn)
        notifies = session.conn.notifies

        def recorded(*, timeout: float | None, stop_after: int | None) -> Iterator[object]:
            waits.append((timeout, stop_after))
            return notifies(timeout=timeout, stop_after=stop_after)

        monkeypatch.setattr(session.conn, "notifies", recorded)
        return session

    node = Node(database.dsn, store)
    node.control._open_session = watched
    with running(node):
        wait_until(lambda: len(waits) >= 2)
    assert all(timeout is not None and timeout <= 2.0 for timeout, _ in waits)
    assert {stop_after for _, stop_after in waits} == {1}
