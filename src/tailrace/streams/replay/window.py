"""Which part of the log a request means: resolved once, then fixed.

Commit times choose, as the log has them, so a transaction that was open for long is where it was
committed and not where it was written. They may go back a little from one transaction to the next:
the range goes from the first that is meant to the last, and what lies between and is not meant is
left out when it is read.

What retention has dropped is never passed over: a request that begins before the log does is
refused, with the time from which it can be had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from tailrace.errors import ConfigError, OffsetOutOfRange, SegmentCorrupt
from tailrace.log import Reader, read_genesis
from tailrace.log.history import headers_back
from tailrace.log.plan import offset_at_time, offset_before_time
from tailrace.model import Offset
from tailrace.sinks import Holds
from tailrace.streams.replay.request import Bound, Request, show_bound, to_time
from tailrace.streams.taken import Taken, TakenTables, matching, slowest


@dataclass(frozen=True, slots=True)
class Window:
    """The changes of `tables` in `(start, end]`, of each from where it stands on; with
    `between_us`, those that were committed then. `note` says what was decided about the request.
    """

    start: Offset
    end: Offset
    tables: TakenTables
    between_us: tuple[int, int] | None = None
    note: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to deliver."""
        return self.start >= self.end

    def to_json(self) -> bytes:
        """As stored."""
        value = {
            "start": self.start.to_dict(),
            "end": self.end.to_dict(),
            "tables": [table.to_json() for table in self.tables],
            "between_us": self.between_us,
            "note": self.note,
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Window:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            value = json.loads(data)
            between = value["between_us"]
            return cls(
                start=Offset.from_dict(value["start"]),
                end=Offset.from_dict(value["end"]),
                tables=tuple(map(Taken.from_json, value["tables"])),
                between_us=None if between is None else (int(between[0]), int(between[1])),
                note=value["note"],
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SegmentCorrupt("the range of a replay cannot be read") from error


def available(reader: Reader) -> tuple[int, int] | None:
    """The commit times between which the log has everything, in microseconds since 1970; None if it
    has nothing.
    """
    first = next(iter(reader.walk(Offset.whole(reader.begin()))), None)
    if first is None:
        return None
    newest = next(headers_back(reader.store), first.header)
    return first.header.commit_ts_us_min, newest.commit_ts_us_max


def resolve(request: Request, reader: Reader, tables: TakenTables, holds: Holds) -> Window:
    """What the request means for a stream that stands at `tables`, to a sink that holds that much
    of them. Raises ConfigError or OffsetOutOfRange.
    """
    chosen = _chosen(request, tables)
    if holds is Holds.VERSIONS:
        raise ConfigError(
            f"the sink of stream {request.stream} keeps every version of a row, each once: a replay"
            " has nothing to add",
            hint="--to-sink replays to another place; `tailrace snapshot` delivers a table anew",
        )
    start = _start(request.since, reader)
    end = _end(request.until, reader)
    held = slowest(chosen, end)
    note = ""
    if start >= end:
        note = f"nothing was committed from {request.window}"
    elif end > held:
        end, note = held, f"up to {held}, where the stream is: what follows is delivered anyway"
    return Window(start, max(start, end), _from(start, chosen, holds), _between(request), note)


def _chosen(request: Request, tables: TakenTables) -> TakenTables:
    chosen = matching(tables, request.tables) if request.tables else tables
    if not chosen:
        known = ", ".join(table.qualified for table in tables)
        what = f"no table {', '.join(request.tables)}" if request.tables else "no table yet"
        raise ConfigError(
            f"stream {request.stream} has {what}",
            hint=f"it has {known}" if known else "wait until it has taken up its tables",
        )
    return chosen


def _from(start: Offset, tables: TakenTables, holds: Holds) -> TakenTables:
    """Where each table is read from. A base has brought every row as of its position: an older
    change is never news to a sink that holds rows.
    """
    return tuple(
        replace(
            table,
            position=max(start, Offset.whole(table.generation)) if holds is Holds.ROWS else start,
        )
        for table in tables
    )


def _between(request: Request) -> tuple[int, int] | None:
    since, until = request.since, request.until
    if isinstance(since, Offset) and isinstance(until, Offset):
        return None
    first = since if isinstance(since, int) else -(1 << 63)
    return first, until if isinstance(until, int) else (1 << 63) - 1


def _start(since: Bound, reader: Reader) -> Offset:
    if isinstance(since, Offset):
        if since.commit_lsn < reader.begin() and _is_cut(reader):
            raise _dropped(since, reader)
        return max(since, Offset.whole(reader.begin()))
    found = available(reader)
    if found is not None and since < found[0] and _is_cut(reader):
        raise _dropped(since, reader)
    return offset_before_time(reader, since)


def _end(until: Bound, reader: Reader) -> Offset:
    tip = Offset.whole(reader.tip().segment_end)
    return min(tip, until if isinstance(until, Offset) else offset_at_time(reader, until))


def _is_cut(reader: Reader) -> bool:
    """Whether the log once began earlier."""
    genesis = read_genesis(reader.store)
    return genesis is None or reader.begin() > genesis.end


def _dropped(since: Bound, reader: Reader) -> OffsetOutOfRange:
    found = available(reader)
    first = reader.begin() if found is None or isinstance(since, Offset) else to_time(found[0])
    return OffsetOutOfRange(
        f"the log does not go back to {show_bound(since)}: retention has dropped what was before"
        f" {first}",
        hint=f"begin the replay at {first}; `tailrace snapshot` delivers whole tables anew",
    )
