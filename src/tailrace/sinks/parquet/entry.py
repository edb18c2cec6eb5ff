"""One entry of a table's index: what a batch or a load has added, and what holds since then.

An entry says everything that a writer needs of the past, so that only the last one is ever read:
the shape of the table, the sequence of each stream, how many rows there are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

PREFIX: Final = "_index/"

Kind = Literal["table", "batch", "load", "replay"]


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file, by its key below the table, and how much is in it."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Entries are numbered from 0 without a gap; the first one only makes the table.

    `rows` counts those of all entries up to this one, `recorded` has the last sequence of each
    stream. `upto` is the position up to which the stream's changes are there, for people.
    """

    number: int
    kind: Kind
    shape: pa.Schema
    stream: str = ""
    sequence: int = -1
    upto: str = ""
    files: tuple[ChangeFile, ...] = ()
    rows: int = 0
    recorded: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Where in the store it is."""
        return entry_key(self.number)

    def covers(self, stream: str, sequence: int) -> bool:
        """Whether this sequence of the stream, or a later one, is recorded."""
        recorded = self.recorded.get(stream)
        return recorded is not None and recorded >= sequence

    def to_json(self) -> bytes:
        """As it is kept."""
        value = {
            "number": self.number,
            "kind": self.kind,
            "stream": self.stream,
            "sequence": self.sequence,
            "upto": self.upto,
            "files": [
                {"path": file.path, "rows": file.rows, "bytes": file.bytes} for file in self.files
            ],
            "rows": self.rows,
            "recorded": dict(self.recorded),
            "schema": base64.b64encode(self.shape.serialize()).decode(),
        }
        return json.dumps(value, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Entry:
        """What `to_json` made; raises ValueError, KeyError or TypeError if it is something else."""
        value: dict[str, Any] = json.loads(data)
        return cls(
            number=value["number"],
            kind=value["kind"],
            shape=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"]))),
            stream=value["stream"],
            sequence=value["sequence"],
            upto=value["upto"],
            files=tuple(ChangeFile(**file) for file in value["files"]),
            rows=value["rows"],
            recorded=value["recorded"],
        )


def entry_key(number: int) -> str:
    """The key of an entry: numbers sort as they count."""
    return f"{PREFIX}{number:012d}.json"
