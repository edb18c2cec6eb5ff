"""The sample shop: it does what makes capture hard, and counts exactly what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import psycopg
import pytest
from psycopg import sql

from tailrace.cli.shop import TABLES, Writers, create, fill_past, stock
from tailrace.cli.shop import writers as writers_module
from tailrace.cli.shop.trade import TRADES
from tailrace.errors import SourceError
from tests.server import Database, ServerFactory

WAIT_S = 30


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    """A database with the shop in it."""
    with database.connect() as connection:
        create(connection)
        stock(connection)
    yield database


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def begin_stream(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE PUBLICATION shop FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot('shop', 'pgoutput')")


def frames(database: Database) -> list[bytes]:
    query = (
        "SELECT data FROM pg_logical_slot_get_binary_changes('shop', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'shop')"
    )
    with database.connect() as connection:
        return [bytes(data) for (data,) in connection.execute(query)]


def row_changes(found: list[bytes]) -> int:
    tags = Counter(frame[:1] for frame in found)
    return tags[b"I"] + tags[b"U"] + tags[b"D"]


def contents(database: Database) -> list[list[tuple[object, ...]]]:
    queries = (
        "SELECT * FROM public.products ORDER BY sku",
        "SELECT id, name, phone, vip, profile, md5(notes) FROM public.customers ORDER BY id",
        "SELECT id, customer_id, status, total, token FROM public.orders ORDER BY id",
        "SELECT * FROM public.order_items ORDER BY order_id, line",
    )
    with database.connect() as connection:
        connection.execute("UPDATE public.products SET updated_at = NULL")
        return [connection.execute(query).fetchall() for query in queries]


def test_the_shop_has_its_tables(shop: Database) -> None:
    with shop.connect() as connection:
        for table in TABLES:
            assert connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone() == (
                True,
            )


def test_every_trade_does_what_it_counts(shop: Database) -> None:
    """The number a trade returns is the number of rows that Postgres streams for it."""
    begin_stream(shop)
    random = Random(3)
    seen: Counter[str] = Counter()
    with shop.connect() as connection:
        for trade in [*list(TRADES)[:1] * 20, *TRADES] * 2:
            with connection.transaction():
                changes = trade(connection, random)
            assert row_changes(frames(shop)) == changes, trade.__name__
            seen[trade.__name__] += changes
    assert all(seen[trade.__name__] for trade in TRADES)


def test_the_shop_does_what_makes_capture_hard(shop: Database) -> None:
    begin_stream(shop)
    random = Random(1)
    with shop.connect() as connection:
        for trade in list(TRADES) * 8:
            with connection.transaction():
                trade(connection, random)
    found = frames(shop)
    with_old_key = [frame for frame in found if frame[:1] == b"U" and frame[5:6] == b"K"]
    assert with_old_key, "an update of a key"
    # tuple data: N, number of columns, then for each its kind; an unchanged value is a lone `u`.
    assert any(frame[:1] == b"U" and b"u" in _kinds(frame) for frame in found), "unchanged TOAST"
    assert any(b"u" in _kinds(frame) for frame in with_old_key), "both at once"
    assert any(frame[:1] == b"D" for frame in found), "deletes"


def _kinds(update: bytes) -> list[bytes]:
    """The kinds of the new tuple's columns in an update frame."""
    at = 5
    kinds: list[bytes] = []
    while at < len(update):
        is_new = update[at : at + 1] == b"N"
        count, at = int.from_bytes(update[at + 1 : at + 3]), at + 3
        for _ in range(count):
            kind, at = update[at : at + 1], at + 1
            if kind == b"t":
                at += 4 + int.from_bytes(update[at : at + 4])
            if is_new:
                kinds.append(kind)
    return kinds


def test_what_is_counted_is_what_is_committed(shop: Database) -> None:
    begin_stream(shop)
    with Writers(shop.dsn, count=4) as writers:
        wait_until(lambda: writers.written.transactions >= 150)
        written = writers.stop()
    found = frames(shop)
    assert written.uncertain == written.reconnects == 0
    assert written.rollbacks > 0
    assert row_changes(found) == written.changes


def test_one_writer_is_decided_by_its_seed(shop: Database) -> None:
    def trade(database: Database) -> list[list[tuple[object, ...]]]:
        with database.connect() as connection:
            random = Random(5)
            for _ in range(60):
                (chosen,) = random.choices(tuple(TRADES), tuple(TRADES.values()))
                with connection.transaction():
                    chosen(connection, random)
        return contents(database)

    with shop.server.database() as other:
        with other.connect() as connection:
            create(connection)
            stock(connection)
        assert trade(shop) == trade(other)


def test_the_rate_is_a_limit(shop: Database) -> None:
    with Writers(shop.dsn, count=2, rate=20) as writers:
        began = time.monotonic()
        wait_until(lambda: writers.written.transactions + writers.written.rollbacks >= 12)
        assert time.monotonic() - began >= 10 / 20 - 0.05


def test_stop_does_not_wait_for_the_next_transaction(shop: Database) -> None:
    with Writers(shop.dsn, count=4, rate=0.01) as writers, shop.connect() as connection:
        wait_until(lambda: writers.written.transactions + writers.written.rollbacks >= 4)
        writers.stop()
        assert not any(writer.is_alive() for writer in writers._writers)
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace_shop'"
        wait_until(lambda: connection.execute(query).fetchone() == (0,))


def test_a_locked_table_does_not_keep_a_writer_from_stopping(shop: Database) -> None:
    with Writers(shop.dsn, count=2) as writers:
        wait_until(lambda: writers.written.transactions > 0)
        with shop.connect() as connection, connection.transaction():
            connection.execute("LOCK TABLE public.customers, public.orders, public.products")
            before = writers.written.rollbacks
            wait_until(lambda: writers.written.rollbacks > before)
            writers.stop()


def test_writers_survive_a_lost_connection(shop: Database) -> None:
    with Writers(shop.dsn, count=2) as writers, shop.connect() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tailrace_shop'"
        # One of them may have written all that, before the other has come.
        wait_until(lambda: connection.execute(query).rowcount == 2)
        wait_until(lambda: writers.written.transactions > 5)
        for (pid,) in connection.execute(query).fetchall():
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_until(lambda: writers.written.reconnects >= 2)
        before = writers.written.transactions
        wait_until(lambda: writers.written.transactions > before + 5)
        wait_until(lambda: writers.trouble == "")


def test_a_connection_lost_before_a_rollback_is_only_a_lost_connection(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_and_roll_back(connection: psycopg.Connection, random: Random) -> int:
        with connection.transaction():
            with shop.connect() as other:
                other.execute(
                    "SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid]
                )
            raise psycopg.Rollback
        return 0

    monkeypatch.setattr(writers_module, "TRADES", {lose_and_roll_back: 1})
    with Writers(shop.dsn, count=1) as writers:
        wait_until(lambda: writers.written.reconnects >= 2)
    assert writers.written.rollbacks >= 2
    assert writers.written.transactions == writers.written.uncertain == 0


def test_writers_survive_a_crash_of_the_server(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    with server.connect() as connection:
        create(connection)
        stock(connection)
    with Writers(server.dsn, count=2) as writers:
        wait_until(lambda: writers.written.transactions > 5)
        server.stop("immediate")
        wait_until(lambda: writers.trouble != "")
        server.start()
        before = writers.written.transactions
        wait_until(lambda: writers.written.transactions > before + 5)
        assert writers.written.reconnects > 0


def test_an_error_that_does_not_pass_ends_the_writers_and_is_raised(database: Database) -> None:
    with pytest.raises(SourceError, match="does not exist"), Writers(database.dsn) as writers:
        wait_until(lambda: not any(writer.is_alive() for writer in writers._writers))


def test_an_error_in_the_block_is_not_hidden(database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), Writers(database.dsn):
        raise psycopg.errors.DivisionByZero


def test_the_past_of_the_shop_is_there_before_anybody_captures_it(database: Database) -> None:
    with database.connect() as connection:
        create(connection)
        stock(connection)
        fill_past(connection, orders=300)
        counts = [
            connection.execute(sql.SQL("SELECT count(*) FROM {}").format(table)).fetchone()
            for table in (sql.Identifier("public", name.split(".")[1]) for name in TABLES)
        ]
    assert counts == [(2020,), (1050,), (300,), (600,)]
