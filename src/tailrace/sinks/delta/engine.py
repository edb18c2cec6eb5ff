"""What writes rows to a lake table: each call is one commit that also records the sequence, or
changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tailrace.sinks.delta.merge import Merge
from tailrace.sinks.delta.target import Target
from tailrace.sinks.sink import Batch


@dataclass(frozen=True, slots=True)
class Commit:
    """The record that goes into the same commit as the rows.

    Delta keeps `app_id` and `version` for the table's life, also through checkpoints, and lets
    only one of two writers commit that have read the same one. `note` is for people, in the
    table's history.
    """

    app_id: str
    version: int
    note: str

    @classmethod
    def of(cls, batch: Batch) -> Commit:
        """The record of this batch."""
        note = {
            "stream": batch.stream,
            "sequence": batch.sequence,
            "after": str(batch.after),
            "upto": str(batch.upto),
        }
        return cls(app_id(batch.stream), batch.sequence, json.dumps({"tailrace": note}))


def app_id(stream: str) -> str:
    """The name under which the stream's transactions are recorded."""
    return f"tailrace:{stream}"


class Engine(Protocol):
    """Writes rows. All three may raise `errors`; then, if the record is not there, nothing was
    written.

    A commit is refused if, since `target` was opened, another one has recorded a version of the
    same application. Safe to call from several threads for different targets.
    """

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
