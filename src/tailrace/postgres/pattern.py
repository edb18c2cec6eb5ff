"""Which tables the configuration means: `public.*`, `public.orders`, `"My.Schema".item_?`.

A pattern is `schema.table`. In a bare part `*` stands for any characters and `?` for one;
everything else, the underscore included, stands for itself, in the case it is written in. A part in
double quotes is taken literally, as in SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from tailrace.errors import ConfigError

_PART: Final = r'"(?:[^"]|"")+"|[^".]+'
_PATTERN: Final = re.compile(rf"({_PART})\.({_PART})")


@dataclass(frozen=True, slots=True)
class TablePattern:
    """One pattern; `exact` if it can match one name only, `schema_name` if one schema only.

    >>> TablePattern.parse("public.order*").matches("public", "orders")
    True
    >>> TablePattern.parse("public.a_c").matches("public", "abc")
    False
    """

    text: str
    schema: re.Pattern[str]
    table: re.Pattern[str]
    exact: bool
    schema_name: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a pattern of the configuration; raises ConfigError."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not a table pattern",
                hint='write schema.table, as public.orders, public.* or "My.Schema".*',
            )
        schema, table = match.groups()
        exact = not (_is_wild(schema) or _is_wild(table))
        schema_name = None if _is_wild(schema) else _plain(schema)
        return cls(text, _compiled(schema), _compiled(table), exact, schema_name)

    def matches(self, schema: str, table: str) -> bool:
        """True if the pattern means this table."""
        return bool(self.schema.fullmatch(schema) and self.table.fullmatch(table))


def _is_wild(part: str) -> bool:
    return not part.startswith('"') and ("*" in part or "?" in part)


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _compiled(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(_plain(part)))
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(c) or re.escape(c) for c in part), re.DOTALL)
