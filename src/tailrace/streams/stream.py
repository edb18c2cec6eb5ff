"""A stream as it is configured, and how it is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.errors import TailraceError
from tailrace.sinks import Sink
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.streams.delivery import Delivered
from tailrace.streams.taken import TakenTables


@dataclass(frozen=True, slots=True)
class Stream:
    """Some tables, delivered to one sink.

    `open_sink` is told the name under which the sink keeps what it needs of the stream: the
    stream's, or that of its replays. `open_other_sink` opens one that is described in the words of
    the configuration, under such a name.
    """

    name: str
    tables: Sequence[str]
    open_sink: Callable[[str], Sink]
    trigger_s: float = 0.2
    changes_max: int | None = None
    bytes_max: int | None = None
    selection: Selection = EVERYTHING
    open_other_sink: Callable[[str, str], Sink] | None = None


@dataclass(frozen=True, slots=True)
class StreamState:
    """How a stream is doing; `taken` are the tables that it has taken up, `error` says why it waits
    or has stopped; `replaying` if a replay runs beside it.
    """

    name: str
    delivered: Delivered | None
    error: TailraceError | None
    is_stopped: bool
    taken: TakenTables = ()
    replaying: bool = False

    @property
    def tables(self) -> frozenset[str]:
        """The names of those that it has taken up."""
        return frozenset(table.qualified for table in self.taken)
