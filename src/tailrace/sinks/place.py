"""Where below a path a table is: `<path>/<schema>/<table>`, safe for every name that Postgres
allows.

ASCII letters, digits, `-` and `_` stand for themselves; every other byte of the name's UTF-8, and
a leading `_`, becomes `~` and two hex digits. So no name can leave the lake (`..` is `~2E~2E`),
be taken for a hidden directory or a Delta log (`_delta_log` is `~5Fdelta_log`), or be read
differently as a path and as a URL.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from tailrace.model import Relation

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_COMPONENT: Final = re.compile(r"(?:[A-Za-z0-9_-]|~[0-9A-F]{2})+")


def table_uri(lake: str, relation: Relation) -> str:
    """The table's directory or URL."""
    return f"{lake.rstrip('/')}/{escape(relation.schema)}/{escape(relation.name)}"


def escape(name: str) -> str:
    """A name as one component of a path.

    >>> escape("orders"), escape("Größe/2"), escape("..")
    ('orders', 'Gr~C3~B6~C3~9Fe~2F2', '~2E~2E')
    """
    escaped = "".join(chr(b) if b in _PLAIN else f"~{b:02X}" for b in name.encode())
    return f"~5F{escaped[1:]}" if escaped.startswith("_") else escaped


def unescape(component: str) -> str:
    """The name that `escape` made this of; raises ValueError.

    >>> unescape("Gr~C3~B6~C3~9Fe~2F2")
    'Größe/2'
    """
    if not _COMPONENT.fullmatch(component):
        raise ValueError(f"not a component of a table's path: {component!r}")
    return unquote(component.replace("~", "%"), errors="strict")
