"""What happens in the shop: each function is a part of a transaction and returns how many rows it
inserts, updates or deletes, those by cascade included.

To know the last exactly, a trade locks the rows that will be changed by cascade before it counts
them. A trade that finds nothing to do returns 0.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, LiteralString, TypeAlias
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tailrace.cli.shop import schema

Trade: TypeAlias = Callable[[psycopg.Connection, Random], int]

# With a random number between 0 and 1, some row: spread over the keys, by their index.
_SOME_CUSTOMER: Final = """
SELECT id FROM public.customers
WHERE id >= (SELECT max(id) FROM public.customers) * %s ORDER BY id LIMIT 1 FOR UPDATE
"""
_SOME_ORDER: Final = """
SELECT id FROM public.orders
WHERE id >= (SELECT max(id) FROM public.orders) * %s ORDER BY id LIMIT 1 FOR UPDATE
"""
_SOME_PRODUCT: Final = """
SELECT sku FROM public.products
ORDER BY sku OFFSET floor((SELECT count(*) FROM public.products) * %s) LIMIT 1 FOR UPDATE
"""


def place_order(connection: psycopg.Connection, random: Random) -> int:
    """A new order with some items, in one statement, taken from the stock."""
    customer = _some(connection, random, _SOME_CUSTOMER)
    if customer is None:
        return 0
    order = _insert_order(connection, random, customer)
    items = _count(
        connection,
        "INSERT INTO public.order_items (order_id, line, sku, quantity, price, gift)"
        " SELECT %s, row_number() OVER (ORDER BY sku), sku, 1 + stock %% 3, price, %s"
        " FROM (SELECT * FROM public.products ORDER BY sku OFFSET %s LIMIT %s FOR KEY SHARE) AS p",
        order,
        random.choice((True, False, None)),
        random.randrange(45),
        random.randint(1, 5),
    )
    stock = _count(
        connection,
        "UPDATE public.products AS p SET stock = stock - i.quantity, updated_at = now()"
        " FROM public.order_items AS i WHERE i.order_id = %s AND i.sku = p.sku",
        order,
    )
    return 1 + items + stock


def order_with_second_thoughts(connection: psycopg.Connection, random: Random) -> int:
    """An order whose first item is taken back to a savepoint."""
    customer = _some(connection, random, _SOME_CUSTOMER)
    if customer is None:
        return 0
    order = _insert_order(connection, random, customer)
    item = (
        "INSERT INTO public.order_items (order_id, line, sku, quantity, price)"
        " SELECT %s, %s, sku, 1, price FROM public.products ORDER BY sku LIMIT 1"
    )
    with connection.transaction():
        _count(connection, item, order, 1)
        raise psycopg.Rollback
    return 1 + _count(connection, item, order, 2)


def join(connection: psycopg.Connection, random: Random) -> int:
    """A new customer."""
    return _count(connection, schema.INSERT_CUSTOMER, *schema.customer(random))


def edit_customer(connection: psycopg.Connection, random: Random) -> int:
    """New contact data, NULL among them; the notes, which may be long, stay as they are."""
    return _count(
        connection,
        "UPDATE public.customers SET phone = %s, profile = %s, vip = NOT vip WHERE id = %s",
        schema.phone(random),
        random.choice((None, Jsonb({"seen": random.randrange(100)}))),
        _some(connection, random, _SOME_CUSTOMER),
    )


def take_notes(connection: psycopg.Connection, random: Random) -> int:
    """A long text replaced by another, by a short one, or by none."""
    notes = random.choice((None, "called", schema.long_text(random)))
    customer = _some(connection, random, _SOME_CUSTOMER)
    statement = "UPDATE public.customers SET notes = %s WHERE id = %s"
    return _count(connection, statement, notes, customer)


def reprice(connection: psycopg.Connection, random: Random) -> int:
    """Many products at once, in order, so that two of these do not deadlock."""
    return _count(
        connection,
        "UPDATE public.products SET price = round(price * %s, 2), updated_at = now() WHERE sku IN"
        " (SELECT sku FROM public.products WHERE price < %s ORDER BY sku LIMIT 8 FOR UPDATE)",
        random.choice(("0.95", "1.05")),
        schema.price(random),
    )


def ship(connection: psycopg.Connection, random: Random) -> int:
    """An order's next state."""
    return _count(
        connection,
        "UPDATE public.orders SET status = %s, shipped_on = %s WHERE id = %s",
        random.choice(("paid", "shipped", "returned")),
        random.choice((None, "2026-01-15")),
        _some(connection, random, _SOME_ORDER),
    )


def rename_product(connection: psycopg.Connection, random: Random) -> int:
    """A primary key changes, and by cascade the items that refer to it; the long text does not."""
    sku = _some(connection, random, _SOME_PRODUCT)
    items = _count(connection, "SELECT FROM public.order_items WHERE sku = %s FOR UPDATE", sku)
    statement = "UPDATE public.products SET sku = %s WHERE sku = %s"
    return items + _count(connection, statement, schema.sku(random), sku)


def renumber_item(connection: psycopg.Connection, random: Random) -> int:
    """One column of a key of two changes."""
    order = _some(connection, random, _SOME_ORDER)
    return _count(
        connection,
        "UPDATE public.order_items AS i SET line = last + 1 FROM"
        " (SELECT max(line) AS last, min(line) AS first FROM public.order_items"
        " WHERE order_id = %s) AS lines WHERE i.order_id = %s AND i.line = first",
        order,
        order,
    )


def cancel_order(connection: psycopg.Connection, random: Random) -> int:
    """An order is deleted, and its items with it."""
    order = _some(connection, random, _SOME_ORDER)
    items = _count(connection, _ITEMS_OF_ORDERS, [order] if order else [])
    return items + _count(connection, "DELETE FROM public.orders WHERE id = %s", order)


def close_account(connection: psycopg.Connection, random: Random) -> int:
    """A customer is deleted with orders and their items, unless the shop would run out of them."""
    customer = _some(connection, random, _SOME_CUSTOMER)
    if _value(connection, "SELECT count(*) < 10 FROM public.customers"):
        return 0
    query = "SELECT id FROM public.orders WHERE customer_id = %s ORDER BY id FOR UPDATE"
    orders = [order for (order,) in connection.execute(query, (customer,)).fetchall()]
    items = _count(connection, _ITEMS_OF_ORDERS, orders)
    deleted = _count(connection, "DELETE FROM public.customers WHERE id = %s", customer)
    return items + len(orders) + deleted


_ITEMS_OF_ORDERS: Final = (
    "SELECT FROM public.order_items WHERE order_id = ANY (%s) ORDER BY order_id, line FOR UPDATE"
)

TRADES: Final[dict[Trade, int]] = {
    place_order: 30,
    ship: 15,
    edit_customer: 12,
    cancel_order: 10,
    join: 8,
    reprice: 6,
    renumber_item: 5,
    rename_product: 4,
    order_with_second_thoughts: 4,
    take_notes: 4,
    close_account: 2,
}
"""Every trade with how often it happens."""


def _insert_order(connection: psycopg.Connection, random: Random, customer: object) -> object:
    return _value(
        connection,
        "INSERT INTO public.orders (customer_id, total, token) VALUES (%s, %s, %s) RETURNING id",
        customer,
        schema.price(random),
        UUID(bytes=random.randbytes(16), version=4),
    )


def _some(connection: psycopg.Connection, random: Random, query: LiteralString) -> object:
    return _value(connection, query, random.random())


def _value(connection: psycopg.Connection, query: LiteralString, *values: object) -> object:
    """The one value that the query gives; None if it gives no row."""
    found = connection.execute(query, values).fetchone()
    return found[0] if found else None


def _count(connection: psycopg.Connection, query: LiteralString, *values: object) -> int:
    """How many rows the statement changes, or finds."""
    return connection.execute(query, values).rowcount
