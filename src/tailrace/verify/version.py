"""Which version of a lake table to compare, and how far into the log it reaches.

Each commit of a stream notes the range that it delivers, and each version tells the number of the
last batch in it; so it is known what the table held at any time. What others have done to the table
since is part of the version, and of what is to be found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tailrace.errors import SinkError
from tailrace.model import Lsn, Offset
from tailrace.sinks.delta.commit import app_id
from tailrace.verify.standing import Standing

_COMMITS_AT_ONCE: Final = 64
_COMMITS_MAX: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Version:
    """The table at `number` holds everything up to `position`, and nothing behind it."""

    number: int
    position: Offset


@dataclass(frozen=True, slots=True)
class _Range:
    """What a commit of the stream says that it delivers; `after` is None for a load."""

    after: Offset | None
    upto: Offset


def version_at(
    table: DeltaTable, stream: str, standing: Standing, held: Offset, *, at: Offset
) -> Version | None:
    """The newest version that reaches no further than `at`; None if there is none, because the
    table was taken up later. Raises SinkError.

    `standing` is the stream's, read before the table was opened, and `held` what the table has by
    it: batches without a change of the table leave no commit.
    """
    try:
        return _version_at(table, stream, standing, held, at)
    except (DeltaError, OSError) as error:
        raise SinkError(f"the history of {table.table_uri} cannot be read", retry=True) from error


def _version_at(
    table: DeltaTable, stream: str, standing: Standing, held: Offset, at: Offset
) -> Version | None:
    ranges = _ranges(table, stream, at)
    skipped: _Range | None = None
    for number in range(table.version(), -1, -1):
        if number != table.version():
            table = DeltaTable(table.table_uri, version=number)
        sequence = table.transaction_version(app_id(stream))
        found = ranges.get(sequence) if sequence is not None else None
        if sequence is None or found is None:
            return None
        if found.upto > at:
            skipped = found
            continue
        position = found.upto
        if skipped is None:
            # A later batch than the one that the record was read at speaks for itself.
            position = max(position, held) if sequence <= standing.sequence else position
        elif skipped.after is not None:
            position = max(position, skipped.after)
        return Version(number, min(position, at))
    return None


def _ranges(table: DeltaTable, stream: str, at: Offset) -> dict[int, _Range]:
    """The ranges of the stream's batches by number, back to the first that ends before `at`.

    Versions are left out: the library counts them from the one that it has opened, while the
    history is that of now.
    """
    limit = _COMMITS_AT_ONCE
    while True:
        commits = table.history(limit)
        found = dict(note for commit in commits if (note := _note(commit, stream)) is not None)
        reached = any(each.upto <= at for each in found.values())
        if reached or len(commits) < limit or limit >= _COMMITS_MAX:
            return found
        limit *= 4


def _note(commit: Mapping[str, object], stream: str) -> tuple[int, _Range] | None:
    try:
        note = json.loads(str(commit.get("userMetadata") or "null"))["tailrace"]
        if note["stream"] != stream:
            return None
        if "base" in note:
            return note["sequence"], _Range(None, Offset.whole(Lsn.parse(note["base"])))
        after, upto = Offset.parse(note["after"]), Offset.parse(note["upto"])
        return note["sequence"], _Range(after, upto)
    except (ValueError, KeyError, TypeError):
        # Somebody else's.
        return None
