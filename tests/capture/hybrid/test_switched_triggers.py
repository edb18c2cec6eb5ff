"""Triggers that are switched off and on again leave traces, whoever looks and whenever; what we
switch ourselves asks for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count

import psycopg
import pytest
from psycopg import sql

from tailrace.capture.looks import keep_look, last_look
from tailrace.log.bases import newest_positions
from tailrace.log.wanted import wanted_bases
from tailrace.postgres.buffer import row_trigger, truncate_trigger
from tailrace.postgres.quote import identifier, statement
from tailrace.storage import FileStore
from tests.capture.hybrid.test_handover import modes
from tests.capture.hybrid.test_two_leaders import errors
from tests.capture.running import Running, hybrid, settings, wait_caught_up
from tests.capture.tracked import oid_of
from tests.server import Database, both_versions

pytestmark = [both_versions, pytest.mark.usefixtures("quickly")]


def off_and_on(database: Database, source: psycopg.Connection, on: str) -> None:
    """As whoever loads many rows does it: before and after, nothing is to be seen."""
    name = identifier(row_trigger(oid_of(source, "public.t")))
    with database.connect() as other, other.transaction():
        other.execute("ALTER TABLE t DISABLE TRIGGER ALL")
        other.execute(statement("INSERT INTO {} VALUES (1, 'unseen')", identifier(on)))
        other.execute(statement("ALTER TABLE t ENABLE ALWAYS TRIGGER {}", name))
        name = identifier(truncate_trigger(oid_of(source, "public.t")))
        other.execute(statement("ALTER TABLE t ENABLE ALWAYS TRIGGER {}", name))


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("is_partitioned", [True, False])
def test_f078_triggers_switched_off_and_on_again_between_two_looks_ask_for_a_base(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    is_running: bool,
    is_partitioned: bool,
) -> None:
    if is_partitioned:
        source.execute("DROP TABLE t")
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
        source.execute("CREATE TABLE leaf PARTITION OF t DEFAULT")
    told = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        if is_running:
            off_and_on(database, source, "t")
            capture.wait_until(lambda: wanted_bases(store, newest_positions(store)))
    if not is_running:
        off_and_on(database, source, "t")
    with Running(told, store) as capture:
        capture.wait_until(lambda: wanted_bases(store, newest_positions(store)))
    (wanted,) = wanted_bases(store, newest_positions(store)).values()
    assert "its triggers were switched off for a while" in wanted.reason


def test_f078_triggers_switched_off_and_on_again_just_before_the_barrier_hold_it_up(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def switch(name: str) -> None:
        if name == "handover.before_barrier" and not done:
            done.append(name)
            off_and_on(database, source, "t")

    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_for_stream()
    monkeypatch.setattr("tailrace.capture.hybrid.handover.failpoint", switch)
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        assert done
        (wanted,) = wanted_bases(store, newest_positions(store)).values()
        assert "its triggers were switched off for a while" in wanted.reason


def test_what_is_switched_by_us_asks_for_no_base(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("DROP TABLE t")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (9)")
    own, numbers = hybrid("auto", tables={"public.t": "trigger"}), count(10, 10)

    def is_in(mode: str) -> bool:
        return modes(source) == {"t": mode}

    for told, mode in 2 * [(own, "TRIGGER"), (hybrid("auto"), "WAL")]:
        with Running(settings(database.dsn, hybrid=told), store) as capture:
            capture.wait_until(partial(is_in, mode))
            number = next(numbers)
            for query in (
                "CREATE TABLE {} PARTITION OF t FOR VALUES FROM ({low}) TO ({high})",
                "INSERT INTO t (id) VALUES ({id})",
            ):
                values = {"low": number, "high": number + 10, "id": number // 10}
                literals = {name: sql.Literal(value) for name, value in values.items()}
                source.execute(sql.SQL(query).format(identifier(f"p{number}"), **literals))
            wait_caught_up(capture, source)
    assert wanted_bases(store, newest_positions(store)) == {}


def test_f082_a_look_that_a_late_leader_has_kept_does_not_hold_up_a_hand_over_for_ever(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    with Running(by_trigger, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        wait_caught_up(capture, source)
    with (
        database.connect() as writer,
        Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture,
    ):
        with writer.transaction():
            writer.execute("INSERT INTO t VALUES (1, 'open')")
            capture.wait_until(lambda: "is being written" in (errors(source)[0] or ""))
            late = last_look(store, oid_of(source, "public.t"))
            assert late is not None and late.triggers is not None
            keep_look(store, replace(late, triggers=((late.oid, "1 2"),)))
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        (wanted,) = wanted_bases(store, newest_positions(store)).values()
        assert "its triggers were switched off for a while" in wanted.reason


@pytest.mark.parametrize("is_switched", [True, False])
def test_f078_switched_triggers_are_found_beside_a_late_look_that_does_not_show_them(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    is_switched: bool,
) -> None:
    """The late leader has looked when the WAL gave the table; then it went back."""
    by_trigger = settings(database.dsn, hybrid=hybrid("auto", tables={"public.t": "trigger"}))
    done: list[str] = []

    def switch(name: str) -> None:
        if name != "handover.after_transitioning" or done:
            return
        done.append(name)
        late = last_look(store, oid_of(source, "public.t"))
        assert late is not None and late.triggers is not None
        keep_look(store, replace(late, triggers=None))
        if is_switched:
            off_and_on(database, source, "t")

    with Running(by_trigger, store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER"})
        wait_caught_up(capture, source)
    monkeypatch.setattr("tailrace.capture.hybrid.handover.failpoint", switch)
    with Running(settings(database.dsn, hybrid=hybrid("auto")), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "WAL"})
        assert done
        assert len(wanted_bases(store, newest_positions(store))) == is_switched
