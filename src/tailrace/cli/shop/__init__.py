"""A sample shop for the demo: four tables, and writers that trade in them."""

from tailrace.cli.shop.past import fill_past
from tailrace.cli.shop.schema import TABLES, create, stock
from tailrace.cli.shop.writers import Writers, Written

__all__ = ["TABLES", "Writers", "Written", "create", "fill_past", "stock"]
