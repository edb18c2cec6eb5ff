"""Two whole nodes on one source and one log: one works, the other stands by and takes over."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.capture.running import wait_until
from tests.cli.whole_node import PATIENCE_S, WholeNode
from tests.proxy import Proxy
from tests.server import Database
from tests.sinks.queue.servers import WebhookQueue, webhook
from tests.streams.running import lake_table

KEYS, WINDOW = 8, 4


class Life:
    """Rows that change one after the other, until told to rest; `n` counts the changes of a row."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rest = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self.changes = 0

    def _live(self) -> None:
        with self._database.connect() as conn:
            while not self._rest.wait(0.05):
                conn.execute(
                    "INSERT INTO t VALUES (%s, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1",
                    [self.changes % KEYS],
                )
                self.changes += 1

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._rest.set()
            self._thread.join()


class Pair:
    """Two nodes; the second one reaches the source through a network that can be cut."""

    def __init__(self, database: Database, directory: Path, queue: WebhookQueue, port: int) -> None:
        self.lake = directory / "lake"
        hook = {"type": "webhook", "url": queue.url, "window_count": WINDOW, "batch_count": 2}
        lake = {"type": "delta", "path": str(self.lake), "engine": "deltalake"}
        streams = {"hook": {"sink": hook}, "lake": {"sink": lake}}
        far = make_conninfo(database.tcp_dsn, port=str(port), sslmode="disable")
        self.first, self.second = (
            WholeNode(
                directory / name,
                {
                    "source": {"name": "main", "dsn": dsn},
                    "log": {"url": f"file:{directory / 'log'}"},
                    "capture": {"mode": "wal", "receive_timeout": "8s"},
                    "streams": streams,
                },
            )
            for name, dsn in (("first", database.dsn), ("second", far))
        )
        self._queue = queue

    def await_led(self, node: WholeNode, times: int) -> None:
        """Until the node captures and delivers, and more has arrived since."""
        led = "stream is led here stream="
        node.await_said(f"{led}hook", f"{led}lake", "streaming slot=", times=times)
        sent = len(self._queue.received())
        wait_until(lambda: len(self._queue.received()) > sent + KEYS, patience_s=PATIENCE_S)

    def rows(self) -> list[tuple[int, int]]:
        found = lake_table(self.lake, "public/t").to_pylist()
        return sorted((row["id"], row["n"]) for row in found)


@pytest.mark.slow
def test_f081_f082_nodes_take_over_from_each_other_and_nothing_is_lost(
    database: Database, tmp_path: Path
) -> None:
    with database.connect() as conn, ExitStack() as stack:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
        queue = stack.enter_context(webhook())
        proxy = stack.enter_context(Proxy(int(conninfo_to_dict(database.tcp_dsn)["port"] or 0)))
        pair = Pair(database, tmp_path, queue, proxy.port)
        first, second, life = pair.first, pair.second, Life(database)
        for node in (first, second):
            stack.callback(node.end)
            node.start()
            node.await_said("stream started stream=hook" if node is first else "standing by")
        with life.going_on():
            pair.await_led(first, 1)
            second.await_said("spark started", "stream is led elsewhere stream=lake")
            first.signal(signal.SIGSTOP)
            pair.await_led(second, 1)
            first.signal(signal.SIGCONT)
            ended = ("stream ended stream=hook", "stream ended stream=lake")
            first.await_said(*ended, "standing by")
            proxy.faults.frozen = True
            pair.await_led(first, 2)
            proxy.faults.frozen = False
            second.await_said(*ended)
            first.kill("run", "capture", "pipeline")
            pair.await_led(second, 2)
        rows = conn.execute("SELECT id, n FROM t ORDER BY id").fetchall()
        wait_until(lambda: pair.rows() == rows, patience_s=PATIENCE_S)
        total = life.changes
        wait_until(lambda: sum(map(len, _events(queue).values())) == total, patience_s=PATIENCE_S)
        changes = [each for each in queue.received() if each["op"] != "t"]
    assert {key: list(ids.values()) for key, ids in _events(queue).items()} == {
        key: list(range(n + 1)) for key, n in rows
    }
    # At each of the three the window of who led: what a zombie still sends of it is among that.
    assert len(changes) - total <= 3 * WINDOW


def _events(queue: WebhookQueue) -> dict[int, dict[str, int]]:
    """The `n` of each event of each row, by its first arrival."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for message in queue.received():
        if message["op"] != "t":
            row = message["after"]
            found[row["id"]].setdefault(message["source"]["event_id"], row["n"])
    return found
