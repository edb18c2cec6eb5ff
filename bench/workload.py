"""The tables that are written to, and how they are filled: by the server itself, in small
transactions.
"""

from __future__ import annotations

from typing import Final, LiteralString

import psycopg

ROWS_PER_TRANSACTION: Final = 1_000

_ORDERS: Final = """
CREATE TABLE public.orders (
    id bigint PRIMARY KEY,
    customer integer NOT NULL,
    amount numeric(12, 2) NOT NULL,
    note text NOT NULL,
    placed_at timestamptz NOT NULL,
    paid boolean NOT NULL
)
"""

_FILL_ORDERS: Final = """
CREATE PROCEDURE bench.fill_orders(first bigint, last bigint, per_transaction bigint)
LANGUAGE plpgsql AS $$
BEGIN
    WHILE first <= last LOOP
        INSERT INTO public.orders
        SELECT g, g % 10007, (g % 99999989) / 100.0, substr(md5(g::text), 1, 20),
               '2026-01-01'::timestamptz + g * interval '1.234567 seconds', g % 3 = 0
          FROM generate_series(first, least(last, first + per_transaction - 1)) AS g;
        COMMIT;
        first := first + per_transaction;
    END LOOP;
END $$
"""

SHOP_TABLES: Final = ("customers", "products", "orders", "payments")

_SHOP: Final = """
CREATE TABLE public.customers (
    id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL, since timestamptz NOT NULL,
    orders integer NOT NULL
);
CREATE TABLE public.products (
    id bigint PRIMARY KEY, title text NOT NULL, price numeric(12, 2) NOT NULL,
    stock integer NOT NULL
);
CREATE TABLE public.orders (
    id bigint PRIMARY KEY, customer bigint NOT NULL, amount numeric(12, 2) NOT NULL,
    note text NOT NULL, placed_at timestamptz NOT NULL, paid boolean NOT NULL
);
CREATE TABLE public.payments (
    id bigint PRIMARY KEY, order_id bigint NOT NULL, amount numeric(12, 2) NOT NULL,
    paid_at timestamptz NOT NULL
);
"""

SHOP_CHANGES_PER_TRANSACTION: Final = 100
"""30 new orders, 30 orders paid, 30 payments, 5 customers and 5 products; of the last two, half are
new and half are changed."""

_FILL_SHOP: Final = """
CREATE PROCEDURE bench.fill_shop(first bigint, last bigint)
LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
    at timestamptz;
BEGIN
    FOR n IN first .. last LOOP
        at := '2026-01-01'::timestamptz + n * interval '1.234567 seconds';
        INSERT INTO public.orders
        SELECT n * 30 + g, n % 997, (n * g % 99989) / 100.0, substr(md5((n * g)::text), 1, 20),
               at, false
          FROM generate_series(0, 29) AS g;
        INSERT INTO public.payments
        SELECT n * 30 + g, n * 30 + g, (n * g % 99989) / 100.0, at FROM generate_series(0, 29) AS g;
        UPDATE public.orders SET paid = true WHERE id BETWEEN n * 30 AND n * 30 + 29;
        IF n % 2 = 0 THEN
            INSERT INTO public.customers
            SELECT n * 5 + g, 'customer ' || n, n || '.' || g || '@example.com', at, 0
              FROM generate_series(0, 4) AS g;
            INSERT INTO public.products
            SELECT n * 5 + g, 'product ' || md5(n::text), (n + g) % 9973 / 100.0, 100
              FROM generate_series(0, 4) AS g;
        ELSE
            UPDATE public.customers SET orders = orders + 1
             WHERE id BETWEEN (n - 1) * 5 AND (n - 1) * 5 + 4;
            UPDATE public.products SET stock = stock - 1
             WHERE id BETWEEN (n - 1) * 5 AND (n - 1) * 5 + 4;
        END IF;
        COMMIT;
    END LOOP;
END $$
"""


def make_orders(conn: psycopg.Connection) -> None:
    """One table of six columns."""
    _make(conn, _ORDERS, _FILL_ORDERS)


def fill_orders(conn: psycopg.Connection, first: int, last: int) -> None:
    """Insert the orders from `first` to `last`."""
    _fill(conn, "CALL bench.fill_orders(%s, %s, %s)", first, last, ROWS_PER_TRANSACTION)


def make_shop(conn: psycopg.Connection) -> None:
    """Four tables that are inserted into and updated."""
    _make(conn, _SHOP, _FILL_SHOP)


def fill_shop(conn: psycopg.Connection, first: int, last: int) -> None:
    """Commit the transactions from `first` to `last`; `first` is even."""
    _fill(conn, "CALL bench.fill_shop(%s, %s)", first, last)


def _make(conn: psycopg.Connection, tables: LiteralString, procedure: LiteralString) -> None:
    conn.execute("CREATE SCHEMA bench")
    conn.execute(tables)
    conn.execute(procedure)


def _fill(conn: psycopg.Connection, call: LiteralString, *arguments: int) -> None:
    # Nothing is lost if the machine dies now, and the disk is not what this is about.
    conn.execute("SET synchronous_commit = off")
    conn.execute(call, arguments)
    conn.execute("RESET synchronous_commit")
    # So that no checkpoint falls into what is measured.
    conn.execute("CHECKPOINT")
