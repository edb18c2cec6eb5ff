"""Which Relation frames of a table must stand between its rows.

A row of the log is read with the last Relation frame of its table before it. Rows that come from a
buffer and rows that Postgres streams of the table itself may follow each other in any way, and
Postgres sends its Relation frame only once: it knows nothing of ours. So whatever comes next is
compared with what the log has in force, and said again where they differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Announcement:
    """One table's part of a run."""

    places: list[NDArray[np.intp]] = field(default_factory=list)
    versions: list[NDArray[np.intp]] = field(default_factory=list)
    is_row: list[NDArray[np.bool_]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)

    def add(self, places: NDArray[np.intp], frame: bytes, *, are_rows: bool = True) -> None:
        """Rows that are read with this Relation frame, or places where the frame itself stands."""
        if frame not in self.frames:
            self.frames.append(frame)
        self.places.append(places)
        self.versions.append(np.full(len(places), self.frames.index(frame)))
        self.is_row.append(np.full(len(places), are_rows))

    def missing(self, in_force: bytes | None) -> tuple[list[tuple[int, bytes]], bytes | None]:
        """Before which places a Relation frame is to be put, and what is in force afterwards."""
        if not self.places:
            return [], in_force
        places = np.concatenate(self.places)
        order = np.argsort(places, kind="stable")
        places, version = places[order], np.concatenate(self.versions)[order]
        first = self.frames.index(in_force) if in_force in self.frames else -1
        is_new = version != np.concatenate([[first], version[:-1]])
        wanted = np.flatnonzero(is_new & np.concatenate(self.is_row)[order])
        put = [(int(places[at]), self.frames[version[at]]) for at in wanted]
        return put, self.frames[version[-1]]
