"""A process that delivers, killed with SIGKILL while its sink has what it does not know of."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import psycopg

from tailrace.sinks import open_sink
from tailrace.storage import FileStore
from tests import nursery
from tests.capture.running import wait_until
from tests.server import Database
from tests.sinks.queue.moto_server import any_keys, moto_server
from tests.sinks.queue.servers import KinesisQueue, Queue, webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams import killed_sink
from tests.streams.test_queue import events

KEYS, ROUNDS = 6, 6
WINDOW = 4


def history(store: FileStore, rounds: int = ROUNDS) -> Table:
    log, table = MadeLog(store), Table()
    log.insert(table, 0, KEYS)
    for number in range(1, rounds):
        for key in range(KEYS):
            log.commit(table, table.update(key, key, f"note {number}", number))
    return table


def deliver_killed(
    store: FileStore, options: Mapping[str, object], is_held: Callable[[], bool], output: Path
) -> None:
    """Until the sink holds an answer back; then SIGKILL."""
    arguments = (store.url, json.dumps(options))
    process = nursery.start(killed_sink.main, *arguments, failpoint="", output=output)
    wait_until(lambda: is_held() or process.exitcode is not None)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, output.read_text()


def check_queue(
    queue: Queue, options: Mapping[str, object], tmp_path: Path, *, repeated: int
) -> None:
    store = FileStore(tmp_path / "log")
    history(store)
    queue.faults.holds_after = 3
    deliver_killed(store, options, queue.faults.held.is_set, tmp_path / "output.txt")
    queue.faults.clear()
    killed_sink.main(store.url, json.dumps(options))
    found = events(queue.received())
    assert {key: len(ids) for key, ids in found.items()} == dict.fromkeys(range(KEYS), ROUNDS)
    assert all(ids == sorted(ids) for ids in found.values())
    count = sum(message["op"] != "t" for message in queue.received())
    assert KEYS * ROUNDS <= count <= KEYS * ROUNDS + repeated


def test_f081_f097_killed_webhook_process_repeats_at_most_a_window(tmp_path: Path) -> None:
    with webhook() as queue:
        options = {"type": "webhook", "url": queue.url, "window_count": WINDOW, "batch_count": 2}
        check_queue(queue, options, tmp_path, repeated=WINDOW)


def test_f081_f097_killed_kinesis_process_repeats_nothing_that_arrived(
    tmp_path: Path,
) -> None:
    with (
        any_keys(),
        moto_server() as (endpoint, gate),
        closing(KinesisQueue(endpoint, gate)) as queue,
    ):
        options = {"type": "kinesis", **queue.options(), "window_count": WINDOW}
        check_queue(queue, options, tmp_path, repeated=0)


def test_f081_f104_killed_postgres_process_applies_each_batch_once(
    tmp_path: Path, database: Database
) -> None:
    store, options = FileStore(tmp_path / "log"), {"type": "postgres", "dsn": database.dsn}
    table = history(store)
    with closing(open_sink(options)) as sink:
        sink.prepare(table.relation)
    with database.connect() as target, database.connect() as other:
        with other.transaction():
            other.execute("LOCK TABLE public.orders IN SHARE ROW EXCLUSIVE MODE")
            deliver_killed(store, options, lambda: _waits(target), tmp_path / "output.txt")
        killed_sink.main(store.url, json.dumps(options))
        found = target.execute("SELECT * FROM public.orders ORDER BY id").fetchall()
    assert found == table.rows


def _waits(conn: psycopg.Connection) -> bool:
    row = conn.execute(
        "SELECT FROM pg_locks WHERE NOT granted AND relation = 'public.orders'::regclass"
    ).fetchone()
    return row is not None
