"""Where a stream goes on: decided from its own record, never from Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.log import Reader
from tailrace.log.history import headers_back
from tailrace.model import Offset, Relation
from tailrace.postgres.pattern import TablePattern
from tailrace.streams.record import BatchRecord, StreamRecord


@dataclass(frozen=True, slots=True)
class Resume:
    """A run of a stream: it starts after `start` with batch `sequence`.

    If `unfinished` is set, that is this batch: its range is fixed, and the sink may have it.
    """

    start: Offset
    sequence: int
    known: frozenset[str]
    unfinished: BatchRecord | None = None


def resume(record: StreamRecord, reader: Reader, *, patterns: Sequence[str], writer: str) -> Resume:
    """Read where the stream is; one without a record begins at the beginning of the log."""
    newest = record.newest() or record.begin(
        Offset.whole(reader.begin()), writer=writer, patterns=tuple(patterns)
    )
    if not newest.is_start:
        _refuse_latecomers(newest, reader, patterns)
    if record.is_done(newest):
        return Resume(newest.upto, newest.sequence + 1, newest.known | newest.tables)
    return Resume(newest.after, newest.sequence, newest.known, newest)


def _refuse_latecomers(newest: BatchRecord, reader: Reader, patterns: Sequence[str]) -> None:
    """A table that the stream has passed over so far would be delivered without its beginning."""
    if set(patterns) <= set(newest.patterns):
        return
    for header in headers_back(reader.store):
        for use in header.relations:
            is_new = _match(patterns, use.relation) and not _match(newest.patterns, use.relation)
            if is_new and use.since <= newest.after:
                raise ConfigError(
                    f"the stream has passed over {use.relation.qualified} so far",
                    hint="deliver the table by a stream of its own, or reset the stream",
                )


def _match(patterns: Sequence[str], relation: Relation) -> bool:
    parsed = (TablePattern.parse(text) for text in patterns)
    return any(pattern.matches(relation.schema, relation.name) for pattern in parsed)
