"""What the shop has sold before anybody captured it: rows that only a base can bring along."""

from __future__ import annotations

from typing import Final, LiteralString

import psycopg

ORDER_COUNT: Final = 50_000

_PAST: Final[tuple[LiteralString, ...]] = (
    """
    INSERT INTO public.customers (name, phone, credit, created_at)
    SELECT 'Customer ' || g, nullif('+41 44 ' || g % 9, '+41 44 0'), g % 977 / 7.0,
           now() - g * interval '3 hours'
      FROM generate_series(1, 2000) AS g
    """,
    """
    INSERT INTO public.products (sku, title, price, stock, updated_at)
    SELECT 'PAST-' || lpad(g::text, 6, '0'), 'Relic ' || g, 1 + g % 499 / 5.0, g % 50, now()
      FROM generate_series(1, 1000) AS g
    """,
    """
    INSERT INTO public.orders (customer_id, status, total, token, ordered_at, shipped_on)
    SELECT ids[1 + mod(g, cardinality(ids))], 'shipped', mod(g, 10007) / 9.0, gen_random_uuid(),
           now() - g * interval '5 minutes', current_date - g / 288
      FROM generate_series(1, %(orders)s) AS g,
           (SELECT array_agg(id ORDER BY id) AS ids FROM public.customers) AS c
    """,
    """
    INSERT INTO public.order_items (order_id, line, sku, quantity, price)
    SELECT o.id, line, skus[1 + (o.id * line) % cardinality(skus)], 1 + o.id % 3, o.total / 2
      FROM public.orders AS o, generate_series(1, 2) AS line,
           (SELECT array_agg(sku ORDER BY sku) AS skus FROM public.products) AS p
    """,
)


def fill_past(connection: psycopg.Connection, *, orders: int = ORDER_COUNT) -> None:
    """Orders of the last months, their items, customers and products."""
    with connection.transaction():
        for number, statement in enumerate(_PAST):
            connection.execute(statement, {"orders": orders} if number == 2 else None)
    connection.execute("ANALYZE")
