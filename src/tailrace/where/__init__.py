"""Predicates over rows: the `where` of a stream, parsed to a tree of few node types and evaluated
by the column.

The text is SQL in looks only. It is never sent to a server and never becomes part of another text.
"""

from tailrace.where.parse import parse_where
from tailrace.where.predicate import Predicate, columns_of

__all__ = ["Predicate", "columns_of", "parse_where"]
