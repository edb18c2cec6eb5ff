"""Bugs of Postgres' logical decoding that older minor versions have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.postgres.add_table import FIXED_MINOR


@dataclass(frozen=True, slots=True)
class Bug:
    """What a server does wrong, by major version from minor `since` on, until minor `fixed`."""

    what: str
    fixed: Mapping[int, int]
    since: Mapping[int, int]

    def fix_for(self, version_num: int) -> str:
        """The version that is rid of it; empty for one that does not have it."""
        major, minor = divmod(version_num, 10000)
        if self.since.get(major, 0) <= minor < self.fixed.get(major, 0):
            return f"{major}.{self.fixed[major]}"
        return ""


_ALWAYS: Final[Mapping[int, int]] = {}

BUGS: Final = (
    # postgres commit 068674f4, "fix possibility of logical decoding partial transaction changes".
    Bug(
        "may send a transaction in part that was open when the slot was made",
        {14: 13, 15: 8, 16: 4},
        _ALWAYS,
    ),
    Bug(
        "loses changes of a table that is published while it is written; tables are locked against "
        "writers while they are added",
        FIXED_MINOR,
        _ALWAYS,
    ),
    # postgres commit d87d07b7, "fix re-distributing previously distributed invalidation messages".
    Bug(
        "may run out of memory over a long transaction beside many changes of schema",
        {14: 19, 15: 14, 16: 10, 17: 6},
        FIXED_MINOR,
    ),
)


def bugs_of(version_num: int) -> Iterator[tuple[str, str]]:
    """What the version does wrong, each with the version to update to."""
    for bug in BUGS:
        if fixed := bug.fix_for(version_num):
            yield bug.what, fixed
