"""What a predicate may consist of."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias


class Operator(StrEnum):
    """How a column is compared with a literal."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="


Literal: TypeAlias = str | Decimal | bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator literal`."""

    column: str
    operator: Operator
    literal: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True, slots=True)
class Like:
    """`column LIKE pattern`, or ILIKE."""

    column: str
    pattern: str
    ignores_case: bool


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT …`: unknown if that is unknown."""

    part: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """True if all are true."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if any is true."""

    parts: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | IsNull | Like | Not | And | Or


def columns_of(predicate: Predicate) -> frozenset[str]:
    """The columns that decide."""
    match predicate:
        case Not(part):
            return columns_of(part)
        case And(parts) | Or(parts):
            return frozenset[str]().union(*map(columns_of, parts))
        case Comparison() | IsNull() | Like():
            return frozenset({predicate.column})
