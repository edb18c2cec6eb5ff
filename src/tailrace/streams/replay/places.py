"""Whether a replay may write to the targets that it would come to, asked before its first batch."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.errors import SinkError
from tailrace.log.retention import reader_positions
from tailrace.model import Relation
from tailrace.sinks import Holds, Sink
from tailrace.sinks.outage import at_once
from tailrace.sinks.sink import stream_of
from tailrace.storage import Store
from tailrace.streams.replay.keys import record_name


def require_targets(sink: Sink, stream: str, relations: Sequence[Relation]) -> None:
    """A replay adds to targets that the stream has made; one that is gone needs a load."""
    if sink.holds is Holds.MESSAGES:
        return
    found = sink.committed(stream, relations)
    missing = [each.qualified for each in relations if each.qualified not in found]
    if missing:
        raise SinkError(
            f"stream {stream} has delivered nothing to the target of {missing[0]}",
            hint=f"`tailrace snapshot {missing[0]}` delivers the whole table anew",
        )


def require_own_place(
    sink: Sink, stream: str, relations: Sequence[Relation], *, store: Store
) -> None:
    """Another place is one that holds nothing newer than what comes: nothing at all, or, where
    each change is kept by its offset, what replays of this stream have put there.

    It must answer, too: a wrong password or bucket is for the one who asked to correct, and what
    has not begun is not waited for.
    """
    try:
        taken = _taken(sink, stream, relations, store)
    except SinkError as error:
        raise at_once(error) from error
    if taken:
        raise SinkError(
            f"the target of {min(taken)} that --to-sink names has what this replay has not"
            " delivered",
            hint="leave out --to-sink to replay into the stream's own target, or name an empty"
            " place",
        )


def _taken(sink: Sink, stream: str, relations: Sequence[Relation], store: Store) -> set[str]:
    taken = sink.occupied(relations)
    if sink.holds is Holds.CHANGES:
        streams = [name for name in reader_positions(store) if name == stream_of(name)]
        by_streams = {table for name in streams for table in sink.committed(name, relations)}
        own = sink.committed(record_name(stream), relations).keys()
        taken -= own - by_streams
    return taken
