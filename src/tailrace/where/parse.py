"""Reads a predicate: columns compared with literals, joined by AND, OR and NOT.

    status = 'paid' AND (amount >= 10.50 OR "Note" IS NOT NULL) AND region NOT IN ('x', 'y')

A recursive descent over tokens, bounded in length and in depth. Names are folded to lower case
unless they are in double quotes, as in SQL.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from tailrace.errors import ConfigError
from tailrace.where.predicate import (
    And,
    Comparison,
    IsNull,
    Like,
    Literal,
    Not,
    Operator,
    Or,
    Predicate,
)

LENGTH_MAX: Final = 10_000
DEPTH_MAX: Final = 50

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<sign><=|>=|<>|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_FLIPPED: Final = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}
_RESERVED: Final = frozenset(
    ["and", "or", "not", "in", "is", "null", "like", "ilike", "between", "true", "false"]
)
_HINT: Final = (
    "write columns compared with literals, as: status = 'paid' AND (amount >= 10 OR note IS NULL)"
)

Token = tuple[str, str, int]
"""Its kind, what it says, and where it stands."""


def parse_where(text: str) -> Predicate:
    """The predicate; raises ConfigError that says where the text cannot be understood."""
    if len(text) > LENGTH_MAX:
        raise ConfigError(f"a where of {len(text)} characters is too long", hint=f"≤ {LENGTH_MAX}")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Predicate:
        found = self._either()
        kind, said, place = self._tokens[self._at]
        if kind != "end":
            raise _strange(said, place)
        return found

    def _either(self) -> Predicate:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ConfigError("the where is nested too deep", hint=f"at most {DEPTH_MAX} levels")
        parts = [self._all()]
        while self._takes("or"):
            parts.append(self._all())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _all(self) -> Predicate:
        parts = [self._one()]
        while self._takes("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self) -> Predicate:
        negations = 0
        while self._takes("not"):
            negations += 1
        found = self._test()
        return Not(found) if negations % 2 else found

    def _test(self) -> Predicate:
        if self._takes("("):
            found = self._either()
            self._must("(", ")")
            return found
        if self._next[0] in ("text", "number"):
            literal, operator = self._literal(), self._operator()
            return Comparison(self._column(), _FLIPPED.get(operator, operator), literal)
        return self._about(self._column())

    def _about(self, column: str) -> Predicate:
        """What is said about a column."""
        if self._takes("is"):
            is_not = self._takes("not")
            self._must("is", "null")
            return Not(IsNull(column)) if is_not else IsNull(column)
        is_not = self._takes("not")
        if self._takes("in"):
            found: Predicate = self._among(column)
        elif self._takes("between"):
            low = Comparison(column, Operator.GREATER_EQUAL, self._literal())
            self._must("between", "and")
            found = And((low, Comparison(column, Operator.LESS_EQUAL, self._literal())))
        elif self._next[1] in ("like", "ilike"):
            ignores_case = self._take()[1] == "ilike"
            found = Like(column, self._text(), ignores_case)
        elif is_not:
            raise _strange(*self._next[1:])
        elif self._next[0] == "sign" and self._next[1] not in "(),":
            return Comparison(column, self._operator(), self._literal())
        else:
            return Comparison(column, Operator.EQUAL, True)
        return Not(found) if is_not else found

    def _among(self, column: str) -> Predicate:
        self._must("in", "(")
        literals = [self._literal()]
        while self._takes(","):
            literals.append(self._literal())
        self._must("in", ")")
        return Or(tuple(Comparison(column, Operator.EQUAL, literal) for literal in literals))

    def _column(self) -> str:
        kind, said, place = self._take()
        if kind == "quoted" or (kind == "word" and said not in _RESERVED):
            return said
        raise _strange(said, place)

    def _operator(self) -> Operator:
        kind, said, place = self._take()
        said = "<>" if said == "!=" else said
        if kind != "sign" or said not in list(Operator):
            raise _strange(said, place)
        return Operator(said)

    def _literal(self) -> Literal:
        kind, said, place = self._take()
        match kind, said:
            case "text", _:
                return said
            case "number", _:
                return Decimal(said)
            case "word", "true" | "false":
                return said == "true"
            case "word", "null":
                raise ConfigError(
                    f"the where compares with NULL at character {place + 1}",
                    hint="nothing equals NULL: write IS NULL or IS NOT NULL",
                )
        raise _strange(said, place)

    def _text(self) -> str:
        kind, said, place = self._take()
        if kind != "text":
            raise _strange(said, place)
        return said

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _takes(self, said: str) -> bool:
        kind, found, _ = self._next
        if kind in ("word", "sign") and found == said:
            self._at += 1
            return True
        return False

    def _must(self, after: str, said: str) -> None:
        if not self._takes(said):
            place = self._next[2] + 1
            raise ConfigError(
                f"the where lacks {said.upper()} after {after.upper()} at character {place}",
                hint=_HINT,
            )


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise _strange(text[place : place + 10], place)
        kind, said = match.lastgroup, match[match.lastgroup]
        if kind == "text":
            said = said[1:-1].replace("''", "'")
        elif kind == "quoted":
            said = said[1:-1].replace('""', '"')
        elif kind == "word":
            said = said.lower()
        found.append((kind, said, match.start(kind)))
        at = match.end()
    return [*found, ("end", "", len(text))]


def _strange(said: str, place: int) -> ConfigError:
    if not said:
        return ConfigError("the where ends too early", hint=_HINT)
    return ConfigError(f"the where cannot be understood at character {place + 1}", hint=_HINT)
