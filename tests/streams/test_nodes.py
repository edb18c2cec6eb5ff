"""Two nodes, one of which is killed, stopped or cut off: the other goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from tailrace.control.schema import migrate
from tailrace.postgres.session import connect
from tests.capture.running import ROOT, wait_until
from tests.proxy import Proxy
from tests.server import Database
from tests.sinks.queue.servers import webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams.node import WINDOW, Task
from tests.streams.running import PATIENCE_S, lake_rows

KEYS = 8


class Node:
    """A process, and what it says."""

    def __init__(self, task: Task) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.streams.node", json.dumps(asdict(task))],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.strip())

    def end(self) -> None:
        self.process.kill()
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        self._reader.join()

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def wait_for(self, *words: str) -> None:
        wait_until(lambda: all(map(self.says, words)), patience_s=PATIENCE_S)


class Life:
    """A table that changes all the time, until told to rest."""

    def __init__(self, log: MadeLog) -> None:
        self.table = Table()
        self.update_count = 0
        self._log = log
        self._rest = threading.Event()
        log.insert(self.table, 0, KEYS)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while not self._rest.wait(0.05):
            key, self.update_count = self.update_count % KEYS, self.update_count + 1
            update = self.table.update(key, key, f"note {self.update_count}", self.update_count)
            self._log.commit(self.table, update)

    def rest(self) -> None:
        self._rest.set()
        self._thread.join()


@contextmanager
def _strike(how: str, node: Node, proxy: Proxy) -> Iterator[None]:
    """Let it happen to a node; at the end it is over, unless it is dead."""
    if how == "cut":
        proxy.faults.frozen = True
        yield
        proxy.faults.frozen = False
        return
    node.process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    yield
    if how == "stop":
        node.process.send_signal(signal.SIGCONT)


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection]:
    with connect(database.dsn) as conn:
        migrate(conn)
        insert = "INSERT INTO tailrace.streams (name, tables, sink) VALUES (%s, '{public.*}', %s)"
        for name in ("lake", "hook"):
            conn.execute(insert, (name, Jsonb({"type": "memory"})))
        yield conn


@pytest.mark.parametrize("how", ["kill", "stop", "cut"])
def test_f081_f082_the_other_node_takes_over_and_nothing_is_lost(
    log: MadeLog,
    database: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
    how: str,
) -> None:
    life = Life(log)
    with ExitStack() as stack:
        queue = stack.enter_context(webhook())
        port = int(conninfo_to_dict(database.tcp_dsn)["port"] or 0)
        proxy = stack.enter_context(Proxy(port))
        task = Task(database.dsn, log.store.url, str(tmp_path / "lake"), queue.url)
        far = make_conninfo(database.tcp_dsn, port=str(proxy.port), sslmode="disable")
        first = Node(replace(task, dsn=far))
        stack.callback(first.end)
        first.wait_for("leads lake", "leads hook")
        second = Node(task)
        stack.callback(second.end)
        wait_until(lambda: len(queue.received()) > 3 * KEYS, patience_s=PATIENCE_S)
        with _strike(how, first, proxy):
            second.wait_for("leads lake", "leads hook")
            sent = len(queue.received())
            wait_until(lambda: len(queue.received()) > sent + KEYS, patience_s=PATIENCE_S)
        if how != "kill":
            first.wait_for("fenced lake", "fenced hook")
        life.rest()
        wait_until(lambda: lake_rows(tmp_path / "lake") == life.table.rows, patience_s=PATIENCE_S)
        total = life.update_count + KEYS
        wait_until(lambda: len(_ids(queue.received())) == total, patience_s=PATIENCE_S)
        messages = queue.received()
        # Whoever wakes up may be on its way with one window; and what it sent before comes again.
        changes = [each for each in messages if each["op"] != "t"]
        assert len(changes) - total <= 2 * WINDOW
    for key in range(KEYS):
        ids = _ids([each for each in messages if _key(each) == key])
        assert ids == sorted(ids)


def _key(message: dict[str, Any]) -> object:
    return (message["after"] or {}).get("id")


def _ids(messages: list[dict[str, Any]]) -> list[str]:
    """The events, by their first arrival; a base's TRUNCATE is none."""
    changes = [each for each in messages if each["op"] != "t"]
    return list(dict.fromkeys(each["source"]["event_id"] for each in changes))
