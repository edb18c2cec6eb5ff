"""Which version of a lake table to compare, and how far into the log it reaches.

Each commit of a stream notes the range that it delivers, so the table's own history tells what it
held at any time. What others have done to the table since is part of the version, and of what is
to be found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable

from tailrace.model import Lsn, Offset
from tailrace.verify.standing import Standing

_COMMITS_AT_ONCE: Final = 64
_COMMITS_MAX: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Version:
    """The table at `number` holds everything up to `position`, and nothing behind it."""

    number: int
    position: Offset


@dataclass(frozen=True, slots=True)
class _Note:
    """What a commit of the stream says about itself; `after` is None for a load."""

    version: int
    sequence: int
    after: Offset | None
    upto: Offset


def version_at(
    table: DeltaTable, stream: str, standing: Standing, held: Offset, *, at: Offset
) -> Version | None:
    """The newest version that reaches no further than `at`; None if there is none, because the
    table was taken up later.

    `standing` is the stream's, read before the table was opened, and `held` what the table has by
    it: batches without a change of the table leave no commit.
    """
    number = table.version()
    skipped: _Note | None = None
    for note in _notes(table, stream):
        if note.upto > at:
            number, skipped = note.version - 1, note
            continue
        position = note.upto
        if skipped is None:
            # A later batch than the one that the record was read at speaks for itself.
            position = max(position, held) if note.sequence <= standing.sequence else position
        elif skipped.after is not None:
            position = max(position, skipped.after)
        return Version(number, min(position, at))
    return None


def _notes(table: DeltaTable, stream: str) -> Iterator[_Note]:
    """The stream's commits, newest first."""
    seen = 0
    limit = _COMMITS_AT_ONCE
    while limit <= _COMMITS_MAX:
        commits = table.history(limit)
        for commit in commits[seen:]:
            note = _note(commit, stream)
            if note is not None:
                yield note
        if len(commits) < limit:
            return
        seen, limit = len(commits), limit * 4


def _note(commit: Mapping[str, object], stream: str) -> _Note | None:
    try:
        version = int(str(commit["version"]))
        note = json.loads(str(commit.get("userMetadata") or "null"))["tailrace"]
        if note["stream"] != stream:
            return None
        if "base" in note:
            base = Offset.whole(Lsn.parse(note["base"]))
            return _Note(version, note["sequence"], None, base)
        after, upto = Offset.parse(note["after"]), Offset.parse(note["upto"])
        return _Note(version, note["sequence"], after, upto)
    except (ValueError, KeyError, TypeError):
        # Somebody else's.
        return None
