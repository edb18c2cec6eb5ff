"""What the refusals of a target database mean to a stream: by SQLSTATE, one line, with a hint.

What the server says passes or lasts as it does for a source, with two exceptions. What another
writer has put or made meanwhile passes. And a server that takes nothing at all, because a right is
missing for instance, says nothing about the rows: a person has to act there and not here, so the
stream asks again until that is done. A row that the target does not take becomes a dead letter, if
there is a place for these; without one it stops the stream, as does an object in the way. No text
of a row is repeated, and no password.
"""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.errors import SinkError, SourceError
from tailrace.postgres.sqlstate import INSUFFICIENT_PRIVILEGE, LIMIT_EXCEEDED, source_error
from tailrace.sinks.outage import outage

_UNIQUE_VIOLATION: Final = "23505"

# Somebody else has put the same key, or made the same schema, table or column, since we looked.
_OVERTAKEN: Final = frozenset({_UNIQUE_VIOLATION, "42P06", "42P07", "42701", "42710"})

# Nothing is taken until somebody has seen to the server, or to the role.
_CURED_THERE: Final = frozenset({INSUFFICIENT_PRIVILEGE, LIMIT_EXCEEDED, "25006", "57P04"})

# A value that its column cannot hold, a constraint; of triggers and indexes of the user's, an
# exception and a value that is too large.
_REFUSING_CLASSES: Final = frozenset({"22", "23"})
_REFUSING: Final = frozenset({"P0001", "54000"})

# A foreign key, one that restricts: what is lacking, or in the way, may be of another table. Of the
# same one, a unique constraint's, or an exclusion's.
_BY_OTHER_TABLES: Final = frozenset({"23503", "23001"})
_BY_OTHER_ROWS: Final = _BY_OTHER_TABLES | {_UNIQUE_VIOLATION, "23P01"}

_HINTS: Final = {
    "0A000": "a foreign key, a view or a rule on the target stands in the way; drop it",
    "25006": "point dsn of the sink at the primary: this server takes no writes",
    "2BP01": "a view or another object depends on the target; drop it, and make it again",
    INSUFFICIENT_PRIVILEGE: "run `tailrace check`: it says which rights the role needs in the"
    " target database",
    LIMIT_EXCEEDED: "raise that limit at the target database",
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
    if state in _CURED_THERE:
        return outage(f"the target database at {place}: {known}", hint=hint)
    # Of an error without a state only the connection's end is known, in the middle of a commit
    # for instance; what was recorded tells whether the batch is there.
    is_passing = known.retry or state in _OVERTAKEN
    return SinkError(f"the target database at {place}: {known}", hint=hint, retry=is_passing)


def is_refusal(error: BaseException | None) -> bool:
    """Whether a row, or some of the rows, is the reason: without them the others are taken."""
    state = error.sqlstate or "" if isinstance(error, psycopg.Error) else ""
    return state[:2] in _REFUSING_CLASSES or state in _REFUSING


def is_by_other_rows(error: psycopg.Error) -> bool:
    """Whether the row may be taken once others of its batch are."""
    return error.sqlstate in _BY_OTHER_ROWS


def is_by_other_tables(error: BaseException | None) -> bool:
    """Whether those others may be in another table."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _BY_OTHER_TABLES


def connect_failure(error: SourceError) -> SinkError:
    """Why the target database cannot be reached: whatever it is, no row is the reason."""
    hint = error.hint.replace("source.dsn", "dsn of the sink")
    return outage(f"the target database: {error}", hint=hint, is_cured_there=not error.retry)
