"""What a commit to a lake table records beside the rows."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace.sinks.sink import Batch, Load


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
            **({"replay": batch.replay} if batch.replay else {}),
        }
        return cls(app_id(batch.stream), batch.sequence, json.dumps({"tailrace": note}))

    @classmethod
    def of_load(cls, load: Load) -> Commit:
        """The record of this load."""
        note = {"stream": load.stream, "sequence": load.sequence, "base": str(load.position)}
        return cls(app_id(load.stream), load.sequence, json.dumps({"tailrace": note}))


def app_id(stream: str) -> str:
    """The name under which the stream's transactions are recorded."""
    return f"tailrace:{stream}"
