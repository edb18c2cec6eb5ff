"""Names that have broken other systems: quotes, dots, placeholders, statements, 63 bytes."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

HOSTILE: Final = (
    'a"; DROP TABLE x; --',
    "it's",
    "%s %(x)s %",
    "{} {0}",
    "a.b",
    " led by a space",
    "Select",
    "select",
    "1st",
    "back\\slash",
    "line\nbreak",
    "été🙂",
    "é" * 31 + "x",
)

IDENTIFIERS: Final = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63
).filter(lambda name: len(name.encode()) <= 63)
"""Whatever Postgres takes for a name without cutting it."""
