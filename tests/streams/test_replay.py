"""What was delivered is delivered once more: marked, in order, and never an older state over a
newer one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tailrace.model import Offset, ReplicaIdentity
from tailrace.sinks import Sink, open_sink
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.spark.selection import Selection
from tailrace.storage import Store
from tests.decode import wire
from tests.decode.wire import UNSENT
from tests.server import Database
from tests.sinks.queue.servers import WebhookQueue, webhook
from tests.spark.made_log import ITEMS, ORDERS, MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.running import lake_rows, lake_table


def lake(path: Path, mode: str = "upsert", **more: object) -> Callable[[str], Sink]:
    """Opens a lake."""
    options = {"type": "delta", "path": str(path), "mode": mode, "engine": "deltalake", **more}
    return lambda name: open_sink(options, stream=name)


def hook(queue: WebhookQueue, store: Store, envelope: str = "plain") -> Callable[[str], Sink]:
    """Opens a webhook."""
    options = {"type": "webhook", "url": queue.url, "envelope": envelope}
    return lambda name: open_sink(options, store=store, stream=name)


@pytest.fixture
def orders() -> Table:
    return Table()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def lose(path: Path, predicate: str) -> None:
    """Somebody deletes rows of a lake table."""
    DeltaTable(str(path / "public/orders")).delete(predicate)


def offsets(path: Path, origin: str) -> list[tuple[int, int]]:
    """The changes of one origin in a lake table of changes, in order."""
    rows = lake_table(path).filter(pc.field("_origin") == origin).to_pylist()
    return sorted((row["_commit_lsn"], row["_ordinal"]) for row in rows)


def test_f105_replay_puts_back_what_was_lost_and_nothing_old_over_new(
    log: MadeLog, orders: Table, path: Path
) -> None:
    log.insert(orders, 1, 6)
    log.commit(orders, orders.update(2, 2, "then", None), orders.delete(3))
    log.commit(orders, orders.update(1, 1, "now", None), orders.update(4, 40, "moved", None))
    log.commit(orders, orders.insert(3, "again", None))
    flow = Replayed(log.store, lake(path), changes_max=2)
    flow.go_on()
    lose(path, "id IN (2, 5)")
    outcome = flow.replay(time_of(1), time_of(2))
    assert (outcome.state, outcome.change_count, outcome.note) == ("done", 8, "")
    assert lake_rows(path) == orders.rows
    assert flow.replays.current(STREAM) is None
    # The stream goes on behind it.
    log.commit(orders, orders.update(5, 5, "later", None))
    flow.go_on()
    assert lake_rows(path) == orders.rows


def test_replay_up_to_where_the_stream_stands_is_not_interrupted(
    log: MadeLog, orders: Table, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.insert(orders, 1, 4)
    for number in range(1, 5):
        log.commit(orders, orders.update(number, number, "now", None))
    flow = Replayed(log.store, lake(path), changes_max=2)
    flow.go_on()
    lose(path, "id = 4")
    assert flow.replay(time_of(1)).change_count == 8
    assert lake_rows(path) == orders.rows
    assert "interrupted" not in caplog.text


def test_replay_of_what_was_emptied_since_brings_nothing_back(
    log: MadeLog, orders: Table, path: Path
) -> None:
    log.insert(orders, 1, 3)
    log.commit(orders, orders.truncate())
    log.insert(orders, 4, 2)
    flow = Replayed(log.store, lake(path))
    flow.go_on()
    assert flow.replay(time_of(1), time_of(3)).change_count == 6
    assert lake_rows(path) == orders.rows
    # A base has brought every row: what is older is no news, whatever the log lacks between.
    orders.by_key = {7: (7, "not streamed", None)}
    log.base_of(orders)
    flow.go_on()
    assert flow.replay(time_of(1), time_of(3)).state == "done"
    assert lake_rows(path) == orders.rows


def test_deletes_are_replayed_with_their_own_times(log: MadeLog, orders: Table, path: Path) -> None:
    log.insert(orders, 1, 2)
    log.commit(orders, orders.delete(1))
    log.insert(orders, 3)
    flow = Replayed(log.store, lake(path, soft_delete=True))
    flow.go_on()
    before = lake_table(path).sort_by("id").to_pylist()
    DeltaTable(str(path / "public/orders")).update({"_deleted_at": "NULL"}, predicate="id = 1")
    flow.replay(time_of(1), time_of(2))
    assert lake_table(path).sort_by("id").to_pylist() == before


def test_f064_value_that_was_not_sent_is_kept_filled_or_asked_for(
    log: MadeLog, orders: Table, path: Path
) -> None:
    log.insert(orders, 1, 2)
    log.commit(orders, orders.update(1, 1, UNSENT, Decimal(7)))
    orders.by_key[1] = (1, "...1", Decimal(7))
    flow = Replayed(log.store, lake(path))
    flow.go_on()
    flow.replay(time_of(2), time_of(2))
    assert lake_rows(path) == orders.rows
    lose(path, "id = 1")
    # Its value came before the time that is asked for.
    failed = flow.replay(time_of(2), time_of(2))
    assert failed.state == "failed"
    assert "lacks a row" in failed.note and "begin the replay earlier" in failed.note
    # The stream is not held up by what only the replay cannot do.
    log.insert(orders, 3)
    flow.go_on()
    flow.replay(time_of(1), time_of(2))
    assert lake_rows(path) == orders.rows


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_f071_rows_of_an_older_shape_come_to_the_shape_of_today(
    log: MadeLog, orders: Table, path: Path, mode: str
) -> None:
    log.insert(orders, 1, 2)
    orders.add_column("extra")
    log.commit(orders, orders.update(1, 1, "new", None, "x"), orders.insert(3, "c", None, "y"))
    flow = Replayed(log.store, lake(path, mode))
    flow.go_on()
    rows, shape = lake_rows(path), lake_table(path).schema
    if mode == "upsert":
        # The column came after the change: what the target has there stays.
        DeltaTable(str(path / "public/orders")).update({"extra": "'z'"}, predicate="id = 2")
        orders.by_key[2] = (*orders.by_key[2][:3], "z")
        rows = orders.rows
    flow.replay(time_of(1), time_of(2))
    again = rows if mode == "upsert" else sorted([*rows, *rows], key=lambda row: repr(row[0]))
    assert lake_rows(path) == again
    assert lake_table(path).schema == shape


def test_changes_are_added_again_under_their_offsets_and_marked(
    log: MadeLog, orders: Table, path: Path
) -> None:
    log.insert(orders, 1, 4)
    log.commit(orders, orders.update(1, 1, "b", None), orders.delete(2))
    log.insert(orders, 5)
    flow = Replayed(log.store, lake(path, "append"), changes_max=2)
    flow.go_on()
    once = offsets(path, "wal")
    assert flow.replay(time_of(1), time_of(2)).change_count == 6
    assert offsets(path, "replay") == once[:6]
    # Whoever wants it twice gets it twice.
    flow.replay(time_of(2), time_of(3))
    assert offsets(path, "replay") == sorted([*once[:6], *once[4:]])
    assert offsets(path, "wal") == once


def test_parquet_index_names_replayed_files_as_such(
    log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    log.insert(orders, 1, 3)
    options = {"type": "parquet", "path": str(tmp_path / "files")}
    flow = Replayed(log.store, lambda _: open_sink(options))
    flow.go_on()
    flow.replay(time_of(1))
    index = sorted((tmp_path / "files/public/orders/_index").glob("*.json"))
    entries = [json.loads(entry.read_text()) for entry in index]
    assert [entry["kind"] for entry in entries] == ["table", "load", "batch", "replay"]
    assert entries[-1]["recorded"].keys() == {STREAM, f"{STREAM}.replay"}


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_replay_to_another_postgres(
    log: MadeLog, orders: Table, database: Database, mode: str
) -> None:
    log.insert(orders, 1, 3)
    log.commit(orders, orders.update(1, 1, "b", None))
    log.commit(orders, orders.delete(2), orders.update(1, 1, UNSENT, Decimal(9)))
    orders.by_key[1] = (1, "b", Decimal(9))
    options = {"type": "postgres", "dsn": database.dsn, "mode": mode}
    flow = Replayed(log.store, lambda _: open_sink(options), changes_max=3)
    flow.go_on()
    with database.connect() as conn:
        if mode == "append":
            flow.replay(time_of(1), time_of(2))
            query = "SELECT _origin, count(*) FROM orders GROUP BY 1 ORDER BY 1"
            assert conn.execute(query).fetchall() == [("replay", 4), ("wal", 6)]
            return
        conn.execute("DELETE FROM orders WHERE id = 3")
        conn.commit()
        flow.replay(time_of(1), time_of(2))
        rows = conn.execute("SELECT id, note, amount FROM orders ORDER BY id").fetchall()
        assert rows == orders.rows


def test_f096_messages_are_sent_again_in_order_with_a_mark_and_in_their_own_shape(
    log: MadeLog, orders: Table
) -> None:
    log.insert(orders, 1, 2)
    log.commit(orders, orders.update(1, 10, "moved", None), orders.update(2, 2, UNSENT, None))
    orders.add_column("extra")
    log.commit(orders, orders.insert(3, "c", None, "x"))
    for envelope in ("plain", "debezium"):
        with webhook() as queue:
            flow = Replayed(log.store, hook(queue, log.store, envelope), changes_max=2)
            flow.go_on()
            live, keys = _changes(queue), {h["Idempotency-Key"] for h in queue.headers}
            request = flow.ask(time_of(1), time_of(3))
            assert flow.serve().change_count == 5
            sent = _changes(queue)[len(live) :]
            marks = [_about(message).pop("replay") for message in sent]
            assert marks == [request.id] * len(sent)
            # Beside the mark and the batch the same: event ids, values, and the shape of then.
            for message in (*sent, *live):
                del _about(message)["batch"]
            assert sent == live
            again = [headers["Idempotency-Key"] for headers in queue.headers]
            assert len({*again}) == len(keys) + len({*again} - keys) == len(again)
            flow.store = log.store
            _forget(log.store)


def test_replay_to_a_queue_is_in_batches_between_which_it_can_be_ended(
    log: MadeLog, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.streams.replay.run.MESSAGES_MAX", 10)
    monkeypatch.setattr("tailrace.streams.replay.run.CANCEL_S", 0.0)
    log.insert(orders, 1, 60)
    with webhook() as queue:
        flow = Replayed(log.store, hook(queue, log.store, "plain"))
        flow.go_on()
        live, shares = len(_changes(queue)), []

        def look() -> None:
            progress = flow.replays.progress(STREAM)
            assert progress is not None
            shares.append(progress.change_count)
            if len(shares) == 3:
                flow.replays.cancel(STREAM)

        flow.before_batch = look
        outcome = flow.replay(time_of(1))
        assert (outcome.state, outcome.change_count) == ("cancelled", 30)
        assert shares == [0, 10, 20]
        assert len(_changes(queue)) == live + 30


def _changes(queue: WebhookQueue) -> list[dict[str, Any]]:
    """Without what a load sends."""
    return [m for m in queue.received() if m["op"] not in ("t", "r", "truncate", "read")]


def _about(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = message.get("source", message)
    return found


def _forget(store: Store) -> None:
    """As if there had never been a stream."""
    for level in ("streams/", "readers/", "replays/"):
        store.delete([entry.key for entry in store.list(level)])


def test_refused_message_of_a_replay_parks_no_row_of_the_stream(
    log: MadeLog, orders: Table
) -> None:
    log.insert(orders, 1, 3)
    with webhook() as queue:
        flow = Replayed(log.store, hook(queue, log.store, "debezium"))
        flow.go_on()
        queue.faults.fail(2, Kind.POISON)
        outcome = flow.replay(time_of(1))
        assert outcome.state == "done"
        assert "1 message was refused" in outcome.note and "orders.replay" in outcome.note
        assert len(DeadLetters(log.store, f"{STREAM}.replay").names()) == 1
        assert not DeadLetters(log.store, STREAM).names()
        queue.faults.clear()
        # The next replay has none to wait for.
        before = len(queue.received())
        assert "refused" not in flow.replay(time_of(1)).note
        assert len(queue.received()) == before + 3


def test_one_table_one_key_or_another_place(log: MadeLog, orders: Table, tmp_path: Path) -> None:
    items = Table(ITEMS)
    log.insert(orders, 1, 3)
    log.insert(items, 1, 2)
    log.commit(orders, orders.update(2, 20, "moved", None))
    here, there = tmp_path / "lake", tmp_path / "other"
    flow = Replayed(
        log.store, lake(here, "append"), open_other_sink=lambda path, _: lake(Path(path))("")
    )
    flow.go_on()
    flow.ask(time_of(1), tables=["public.items"])
    assert flow.serve().change_count == 2
    flow.ask(time_of(1), tables=["public.orders"], key=[("id", "2")])
    assert flow.serve().change_count == 2
    kept = lake_table(here).filter(pc.field("_origin") == "replay").sort_by("_commit_lsn")
    assert kept.select(["id", "_op"]).to_pylist() == [
        {"id": 2, "_op": "insert"},
        {"id": 2, "_op": "delete"},
    ]
    flow.ask(time_of(1), time_of(2), to_sink=str(there))
    assert flow.serve().change_count == 5
    assert [row[0] for row in lake_rows(there)] == [1, 2, 3]


def test_one_row_of_a_stream_that_has_a_key_of_its_own(log: MadeLog, path: Path) -> None:
    columns = tuple(replace(column, in_identity=True) for column in ORDERS.columns)
    orders = Table(replace(ORDERS, identity=ReplicaIdentity.FULL, columns=columns))
    log.insert(orders, 1, 3)
    log.commit(orders, orders.insert(4, "b", None))
    own = Selection.of(columns=None, where=None, key=("note",))
    flow = Replayed(log.store, lake(path), selection=own)
    flow.go_on()
    lose(path, "note = 'b'")
    flow.ask(time_of(1), key=[("note", "b")])
    outcome = flow.serve()
    assert (outcome.state, outcome.change_count) == ("done", 1)
    assert lake_rows(path) == orders.rows


def test_a_stream_with_a_key_of_its_own_is_replayed_beneath_later_changes(
    log: MadeLog, path: Path
) -> None:
    columns = tuple(replace(column, in_identity=True) for column in ORDERS.columns)
    orders = Table(replace(ORDERS, identity=ReplicaIdentity.FULL, columns=columns))
    log.commit(orders, orders.insert(1, "a", None), orders.insert(2, "b", None))
    gone = wire.delete(orders.relation.oid, old=["1", "a", None])
    del orders.by_key[1]
    log.commit(orders, gone, orders.insert(3, "a", None), orders.insert(4, "c", None))
    own = Selection.of(columns=None, where=None, key=("note",))
    flow = Replayed(log.store, lake(path), selection=own)
    flow.go_on()
    lose(path, "note = 'b'")
    outcome = flow.replay(time_of(1), time_of(1))
    assert (outcome.state, outcome.change_count, outcome.note) == ("done", 2, "")
    assert lake_rows(path) == orders.rows


def test_history_is_not_replayed_into_itself(log: MadeLog, orders: Table, path: Path) -> None:
    log.insert(orders, 1, 3)
    flow = Replayed(log.store, lake(path, "history"))
    flow.go_on()
    outcome = flow.replay(time_of(1))
    assert outcome.state == "failed"
    assert "every version" in outcome.note and "--to-sink" in outcome.note
    assert lake_table(path).num_rows == 3


def test_replay_by_position(log: MadeLog, orders: Table, path: Path) -> None:
    first = log.insert(orders, 1, 2)
    second = log.insert(orders, 3, 2)
    log.insert(orders, 5, 2)
    flow = Replayed(log.store, lake(path, "append"))
    flow.go_on()
    assert flow.replay(first, second).change_count == 2
    assert {lsn for lsn, _ in offsets(path, "replay")} == {second.commit_lsn}
    assert flow.replay(Offset(second.commit_lsn, 0)).change_count == 3


def test_f094_late_commits_are_chosen_by_their_commit_time(
    log: MadeLog, orders: Table, path: Path
) -> None:
    times = [time_of(n) - time_of(0) + 700_000_000 for n in (1, 5, 3, 2, 6, 4)]
    for key, ts_us in enumerate(times):
        log.commit(orders, orders.insert(key, "", None), ts_us=ts_us)
    flow = Replayed(log.store, lake(path, "append"), changes_max=1)
    flow.go_on()
    assert flow.replay(time_of(2), time_of(4)).change_count == 3
    rows = lake_table(path).filter(pc.field("_origin") == "replay").sort_by("_commit_lsn")
    assert rows.column("id").to_pylist() == [2, 3, 5]


def test_target_that_is_gone_is_not_made_by_a_replay(
    log: MadeLog, orders: Table, tmp_path: Path
) -> None:
    log.insert(orders, 1, 3)
    Replayed(log.store, lake(tmp_path / "one", "append")).go_on()
    outcome = Replayed(log.store, lake(tmp_path / "two", "append")).replay(time_of(1))
    assert outcome.state == "failed" and "tailrace snapshot public.orders" in outcome.note
    assert not (tmp_path / "two/public").exists()


def test_f099_full_dead_letters_end_a_replay_and_leave_the_stream_alone(
    log: MadeLog, orders: Table
) -> None:
    log.insert(orders, 1, 6)
    with webhook() as queue:
        options = {"type": "webhook", "url": queue.url, "dead_letter_count": 2}
        flow = Replayed(log.store, lambda name: open_sink(options, store=log.store, stream=name))
        flow.go_on()
        for key in range(1, 5):
            queue.faults.fail(key, Kind.POISON)
        outcome = flow.replay(time_of(1))
        assert outcome.state == "failed"
        assert "are full" in outcome.note and "ask again" in outcome.note
        assert "redrive" not in outcome.note and flow.replays.current(STREAM) is None
        queue.faults.clear()
        log.insert(orders, 7)
        flow.go_on()
        assert queue.received()[-1]["after"]["id"] == 7
        assert flow.replay(time_of(1)).state == "done"


def test_f099_what_waits_among_the_dead_letters_of_the_stream_is_left_to_their_redrive(
    log: MadeLog, orders: Table
) -> None:
    with webhook() as queue, webhook() as other:
        flow = Replayed(
            log.store,
            hook(queue, log.store, "debezium"),
            open_other_sink=lambda _, name: hook(other, log.store, "debezium")(name),
        )
        log.insert(orders, 1, 2)
        flow.go_on()
        queue.faults.fail(1, Kind.POISON)
        log.commit(orders, orders.update(1, 1, "refused", None), orders.update(2, 2, "b", None))
        flow.go_on()
        queue.faults.clear()
        log.commit(orders, orders.update(1, 1, "behind it", None))
        flow.go_on()
        assert len(DeadLetters(log.store, STREAM).waiting()) == 2

        def replayed(receiver: WebhookQueue) -> list[tuple[int, str]]:
            found = [m["after"] for m in receiver.received() if m["source"].get("replay")]
            return [(row["id"], row["note"]) for row in found]

        # What the receiver has got of the row comes again, what waits does not.
        outcome = flow.replay(time_of(1))
        assert outcome.state == "done"
        assert "a row waits" in outcome.note and f"dlq redrive {STREAM}" in outcome.note
        assert replayed(queue) == [(1, "...1"), (2, "...2"), (2, "b")]
        # Also if the range begins behind the letter.
        flow.replay(time_of(3))
        assert len(replayed(queue)) == 3
        # Elsewhere nothing is going to come by a redrive.
        flow.ask(time_of(1), to_sink="other")
        assert flow.serve().note == "" and len(replayed(other)) == 5
        # Of one row alone, no other one is counted.
        for key, told in (("1", "a row waits"), ("2", "")):
            flow.ask(time_of(1), tables=["public.orders"], key=[("id", key)])
            note = flow.serve().note
            assert (told in note) if told else (note == "")
