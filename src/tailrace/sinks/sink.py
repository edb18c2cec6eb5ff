"""What a stream delivers, and what it may expect of the place it delivers to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from tailrace.decode import TableChanges
from tailrace.model import Lsn, Offset, Relation


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes of one stream in `(after, upto]`.

    `sequence` rises by one from batch to batch, and its range is durable before a sink sees it:
    the same sequence always means the same range, so a sink that has recorded it has these
    changes. A table occurs once, under one relation. A stream that leaves columns out narrows the
    relation as well.

    `known_tables` are those (`schema.name`) of which this stream has already delivered a row: their
    target must exist and hold a record of the stream, or somebody has taken the data away.

    `replay` is empty for what is delivered as it happens; else the changes were delivered before,
    and it is the id of the replay that delivers them again, in a row of numbers of its own.
    """

    stream: str
    sequence: int
    after: Offset
    upto: Offset
    tables: Sequence[TableChanges]
    known_tables: frozenset[str] = frozenset()
    replay: str = ""


LOAD_ORDINAL: Final = -1
"""The place, at a load's position, of the end of what was there before. Its rows count from 0."""


@dataclass(frozen=True, slots=True)
class Load:
    """A whole table as it was at `position`, which becomes what its target holds.

    It takes a number in the same row as the stream's batches. `commit_ts_us` is the time at which
    the table was read, in microseconds since 1970.
    """

    stream: str
    sequence: int
    relation: Relation
    position: Lsn
    commit_ts_us: int


class Holds(StrEnum):
    """What a sink has of a table, which decides what it means to deliver changes once more."""

    MESSAGES = "messages"  # nothing: whatever is sent is gone
    CHANGES = "changes"  # every change, by its offset
    ROWS = "rows"  # the rows as they are
    VERSIONS = "versions"  # every version of the rows, by the offset of its begin


REPLAY_SUFFIX: Final = ".replay"
"""Ends the name under which the replays of a stream are recorded; no stream's own name has it. What
retention keeps for one of them has its number behind that.
"""


def stream_of(name: str) -> str:
    """The stream that delivers under this name, by itself or by its replays."""
    return name.partition(REPLAY_SUFFIX)[0]


class Sink(Protocol):
    """A place that changes are delivered to.

    Order: the caller hands over batches and loads of a stream by rising sequence, one at a time; in
    a batch the rows of a table are in offset order, and a sink keeps the order of each key.
    Tables of a batch are independent of each other.

    Duplicates: a batch may come again, whole, after a crash or an error, also when it was applied
    in full or for some tables only. A sink that can record the sequence together with the data
    applies it once; whatever the record says wins, and a writer that comes late with an older
    sequence changes nothing.

    Durability: when `write` returns, everything in the batch would survive the death of the
    machine.

    Retries: the caller's. An error with `retry` may pass; any other needs a person. Either way
    the batch has to be written again; a sink itself waits for nothing and tries nothing twice. A
    queue, which takes messages one by one, tries single ones again for some seconds.

    Threads: what one stream delivers comes from one thread at a time; different streams may share
    a sink.
    """

    @property
    def holds(self) -> Holds:
        """What it has of a table."""
        ...

    def prepare(self, relation: Relation) -> None:
        """Make the target of this table if there is none, so that it exists before its first row.

        Safe to repeat. Raises SchemaError if the sink cannot hold such a table.
        """
        ...

    def write(self, batch: Batch) -> None:
        """Deliver a batch; see above for what holds when it returns.

        Raises SchemaError if a table's shape does not fit its target, SinkError for anything
        else; the target of the table that failed is then as it was.
        """
        ...

    def load(self, load: Load, rows: Iterable[pa.Table]) -> None:
        """Let the target hold these rows and no others, all at once, in the shape of the relation.

        The rows are inserts with the columns of a change, in any order, and are taken piece by
        piece, never all at a time. Everything that holds for a batch holds for a load: it is
        recorded with the data, and one that is recorded already changes nothing. If it fails, or
        if `rows` raises, which is passed on, the target is as it was. The target may have another
        shape, or not be there, or be past the load: then the changes since come again. A sink that
        keeps every change goes back to the load's position, if it can, and adds the rows behind a
        TRUNCATE; one that keeps every version goes back as well, and closes and opens only what
        differs there.
        """
        ...

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        """By `schema.name`, the highest sequence that each of these tables has recorded for the
        stream.

        A table that has none is left out; a sink that records nothing always answers with nothing.
        A stream asks when it starts: a record above its own last sequence means that it has lost
        its place, and its next batches would be taken for old ones.
        """
        ...

    def occupied(self, relations: Iterable[Relation]) -> set[str]:
        """By `schema.name`, those of these tables whose target has been written to, by whomever."""
        ...

    def close(self) -> None:
        """Let go of threads and connections. Nothing is written any more."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """A sink that tries again by itself, and so may take long to return."""

    def stop(self) -> None:
        """From any thread: what waits to be tried again is left to the next run. `write` and `load`
        raise SinkError(retry=True) then; `close` follows.
        """
        ...
