"""What one batch of a stream delivers, as its record keeps it.

There are four kinds of batch, in one row of numbers: changes of a range; a load, which is the base
of one table; a repair, which is some rows of one table; and a start, which is nothing: the first
one, where the stream begins, is resolved once and then fixed; a later one resets the stream and
fences whoever delivers at that time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace.errors import SegmentCorrupt
from tailrace.model import Offset
from tailrace.streams.taken import Taken, TakenTables, moved_to, with_loaded


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Batch `sequence` delivers `(after, upto]` of `tables`, as far as each of them is not there
    yet; or, if `load` is set, the base after which that table stands there; or, if `repair` is set,
    the rows in the object of that key.

    `tables` are as they were before it. `writer` is the run that fixed it. `selection` is what of
    the tables' rows and columns the stream delivers, in the words of its configuration; or which
    replay it is. `count_before` and `count_after` are how many changes its run has delivered
    without it and with it.
    """

    sequence: int
    after: Offset
    upto: Offset
    writer: str
    tables: TakenTables = ()
    load: Taken | None = None
    selection: str = ""
    repair: str = ""
    count_before: int = 0
    count_after: int = 0

    @classmethod
    def start(cls, sequence: int, at: Offset, writer: str) -> BatchRecord:
        """A batch of nothing: the stream begins, or begins again, after `at`, without a table."""
        return cls(sequence, at, at, writer)

    @property
    def is_start(self) -> bool:
        """Whether there is nothing to deliver."""
        return self.after == self.upto and self.load is None and not self.repair

    @property
    def outcome(self) -> TakenTables:
        """The tables as they are when it is delivered."""
        if self.load is not None:
            return with_loaded(self.tables, self.load)
        if self.repair:
            return self.tables
        return moved_to(self.tables, self.upto)

    def to_json(self) -> bytes:
        """As stored."""
        value = {
            "after": self.after.to_dict(),
            "upto": self.upto.to_dict(),
            "writer": self.writer,
            "tables": [table.to_json() for table in self.tables],
            "load": self.load and self.load.to_json(),
            "selection": self.selection,
            "repair": self.repair,
            "counts": [self.count_before, self.count_after],
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> BatchRecord:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            value = json.loads(data)
            counts = value.get("counts", (0, 0))
            return cls(
                sequence=sequence_of(key),
                after=Offset.from_dict(value["after"]),
                upto=Offset.from_dict(value["upto"]),
                writer=value["writer"],
                tables=tuple(map(Taken.from_json, value["tables"])),
                load=value["load"] and Taken.from_json(value["load"]),
                selection=value["selection"],
                repair=value["repair"],
                count_before=counts[0],
                count_after=counts[1],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SegmentCorrupt(
                f"{key} cannot be read", hint="restore it from a backup, or reset the stream"
            ) from error


def sequence_of(key: str) -> int:
    """The number in the name of an object."""
    return int(key.rsplit("/", 1)[-1].partition(".")[0])
