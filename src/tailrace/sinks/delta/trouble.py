"""A lake table that cannot be opened, made, read or written for the moment, and what to see to.

What the libraries say may hold values of rows. So it is repeated only as far as it is known: the
word of the bucket, or of the file system.
"""

from __future__ import annotations

from typing import Final

from tailrace.errors import SinkError
from tailrace.sinks.outage import outage
from tailrace.storage.answers import reason, remedy

_LOCAL: Final = {
    "Permission denied": "give this user read and write permission there",
    "Read-only file system": "let it be written, or choose another path for the sink",
    "Not a directory": "a file stands where a directory should be; take it away",
    "No space left on device": "free some space",
}


def lake_trouble(message: str, error: Exception) -> SinkError:
    """It is tried again, whatever it is; with a hint where a person can do something about it."""
    if hint := remedy(error):
        return outage(f"{message}: {reason(error)}", hint=hint)
    for sign, hint in _LOCAL.items():
        if sign in str(error):
            return outage(f"{message}: {sign.lower()}", hint=hint)
    return SinkError(message, retry=True)
