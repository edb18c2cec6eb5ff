"""What the refusals of a target database mean to a stream: by SQLSTATE, one line, with a hint.

What the server says passes or lasts as it does for a source. Beyond that, what another writer has
put or made meanwhile passes; a value that a column does not take, a missing right and an object in
the way need a person. No text of a row is repeated, and no password.
"""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.errors import SinkError, SourceError
from tailrace.postgres.sqlstate import source_error

_UNIQUE_VIOLATION: Final = "23505"

# Somebody else has put the same key, or made the same schema, table or column, since we looked.
_OVERTAKEN: Final = frozenset({_UNIQUE_VIOLATION, "42P06", "42P07", "42701", "42710"})

_HINTS: Final = {
    "0A000": "a foreign key, a view or a rule on the target stands in the way; drop it",
    "25006": "point dsn of the sink at the primary: this server takes no writes",
    "2BP01": "a view or another object depends on the target; drop it, and make it again",
    "42501": "run `tailrace check`: it says which rights the role needs in the target database",
    _UNIQUE_VIOLATION: "another writer was faster, and it is tried again; if it stays, drop the"
    " unique constraint that somebody has put on the target",
    "22P05": "the target's encoding lacks a letter; deliver to a database of encoding UTF8",
}
_CLASS_HINTS: Final = {
    "22": "a column of the target does not take a value; deliver to a fresh table",
    "23": "drop the constraint that somebody has put on the target",
    "42": "somebody has altered the target; `tailrace snapshot TABLE` delivers the table anew",
}


def sink_error(error: psycopg.Error, place: str) -> SinkError:
    """Any error of a session on the target, as ours."""
    known = source_error(error)
    state = error.sqlstate or ""
    hint = _HINTS.get(state) or known.hint or _CLASS_HINTS.get(state[:2], "")
    # Of an error without a state only the connection's end is known, in the middle of a commit
    # for instance; what was recorded tells whether the batch is there.
    is_passing = known.retry or state in _OVERTAKEN
    return SinkError(f"the target database at {place}: {known}", hint=hint, retry=is_passing)


def connect_failure(error: SourceError) -> SinkError:
    """Why the target database cannot be reached."""
    hint = error.hint.replace("source.dsn", "dsn of the sink")
    return SinkError(f"the target database: {error}", hint=hint, retry=error.retry)
