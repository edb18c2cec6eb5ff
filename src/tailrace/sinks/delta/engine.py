"""What writes rows to a lake table: each call is one commit that also records the sequence, or
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import pyarrow as pa

from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.merge import Merge
from tailrace.sinks.delta.target import Target


class Engine(Protocol):
    """Writes rows. All calls may raise `errors`; then, if the record is not there, nothing was
    written.

    A commit is refused if, since `target` was opened, another one has recorded a version of the
    same application. Safe to call from several threads for different targets.
    """

    is_local: bool
    """Whether rows are written in this process anyway."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises if a commit fails."""
        ...

    def append(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        """Add rows, which have the target's columns in their order."""
        ...

    def overwrite(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        """Replace all rows."""
        ...

    def merge(self, target: Target, merge: Merge, commit: Commit) -> None:
        """Update, delete and insert; a commit is made also if no row matches."""
        ...

    def compact(self, target: Target, cluster_by: Sequence[str]) -> None:
        """Merge small files; if columns are given, order all rows by them. No row changes, and
        nothing is recorded.
        """
        ...

    def vacuum(self, target: Target, retention: timedelta) -> None:
        """Delete files that no version of that time needs."""
        ...
