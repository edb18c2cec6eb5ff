"""Which messages are news: each state is said once, not at every look at it."""

from __future__ import annotations

import re
from typing import Final

# How long a transaction has been open: the same one is no news for having grown older.
_AGE: Final = re.compile(r"\d+ s\b")


class News:
    """Remembers what was last said about each subject."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def is_new(self, subject: str, text: str) -> bool:
        """Whether this differs from what was last said about the subject; takes it as said."""
        text = _AGE.sub("", text)
        was, self._said[subject] = self._said.get(subject), text
        return was != text

    def forget(self, subject: str) -> bool:
        """It is over; if it comes again it is news again. Whether anything had been said."""
        return self._said.pop(subject, None) is not None
