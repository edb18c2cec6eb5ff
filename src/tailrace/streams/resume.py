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
    if record.is_done(newest):
        at = Resume(newest.upto, newest.sequence + 1, newest.known | newest.tables)
    else:
        at = Resume(newest.after, newest.sequence, newest.known, newest)
    if not newest.is_start and not set(patterns) <= set(newest.patterns):
        _refuse_latecomers(at.start, reader, before=newest.patterns, now=patterns)
    return at


def _refuse_latecomers(
    start: Offset, reader: Reader, *, before: Sequence[str], now: Sequence[str]
) -> None:
    """A table that the stream has passed over so far would be delivered without its beginning."""
    for header in headers_back(reader.store):
        for use in header.relations:
            is_late = _match(now, use.relation) and not _match(before, use.relation)
            if is_late and use.since <= start:
                raise ConfigError(
                    f"the stream has passed over {use.relation.qualified} so far",
                    hint="deliver the table by a stream of its own, or reset the stream",
                )


def _match(patterns: Sequence[str], relation: Relation) -> bool:
    parsed = (TablePattern.parse(text) for text in patterns)
    return any(pattern.matches(relation.schema, relation.name) for pattern in parsed)
