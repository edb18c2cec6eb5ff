"""How each stream of a pipeline is doing: its state in one word, how far it is, what waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tailrace.control.stream_reports import StreamReport, Tally
from tailrace.control.streams import Status, sayable
from tailrace.errors import TailraceError
from tailrace.log import Reader
from tailrace.model import Lsn
from tailrace.streams.place import Wish
from tailrace.streams.sights import Letters, Sights
from tailrace.streams.stream import StreamState

_REASON_MAX: Final = 1000
_NOT_MENDED: Final = "the slot is lost, and capture has not mended that yet"


class Delivering(Protocol):
    """What is told of a place."""

    @property
    def wish(self) -> Wish: ...
    @property
    def state(self) -> StreamState: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def epoch(self) -> int: ...
    @property
    def is_fenced(self) -> bool: ...


class Observer:
    """Says how streams are doing: what this process knows of them, and what was last seen of the
    log, so that a report waits for no store. `look` reads that, one thread at a time.
    """

    def __init__(
        self, reader: Reader, *, node: str = "", slot_is_lost: Callable[[], bool] = lambda: False
    ) -> None:
        self._node = node
        self._slot_is_lost = slot_is_lost
        self._sights = Sights(reader)

    def look(self, positions: Mapping[str, Lsn | None]) -> None:
        """See what the log has of these streams, which are delivered up to there."""
        self._sights.look(positions)

    def report(self, place: Delivering) -> StreamReport:
        """As of now; what was not seen is left out."""
        state = place.state
        status, reason = self._status(state)
        stream = place.wish.runnable
        if reason is None and stream is not None and not state.taken:
            reason = f"none of its tables is taken up yet: {', '.join(stream.tables)}"[:_REASON_MAX]
        position = position_of(place)
        lag_bytes, lag_s = self._sights.lag(place.wish.name, position)
        letters = self.letters(place.wish.name)
        return StreamReport(
            name=place.wish.name,
            status=status,
            reason=reason,
            node=self._node,
            epoch=place.epoch,
            position=position,
            lag_bytes=lag_bytes,
            lag_seconds=lag_s,
            dead_letter_count=None if letters is None else letters.letter_count,
        )

    def letters(self, stream: str) -> Letters | None:
        """As of a few seconds ago; None if they were not seen."""
        return self._sights.letters(stream)

    def _status(self, state: StreamState) -> tuple[Status, str | None]:
        if state.is_stopped:
            assert state.error is not None, "a stream stops for a reason"
            return Status.STOPPED, _told(state.error)
        if state.error is not None:
            return Status.FAILOVER, _told(state.error)
        if state.replaying:
            return Status.REPLAY, None
        if reason := self._recovery(state):
            return Status.SLOT_RECOVERY, reason
        return Status.HEALTHY, None

    def _recovery(self, state: StreamState) -> str:
        """What a lost slot keeps the stream waiting for, if anything: first for capture, then for a
        new base of each table of which changes are missing.
        """
        if not state.taken:
            return ""
        if self._slot_is_lost():
            # Capture puts marks while it mends that: what was seen before has none of them.
            self._sights.forget_lost()
            return _NOT_MENDED
        lost = self._sights.lost
        if lost is None:
            return _NOT_MENDED
        waiting = [t.qualified for t in state.taken if t.generation < lost.get(t.oid, t.generation)]
        if not waiting:
            return ""
        more = f" and {len(waiting) - 1} more wait" if len(waiting) > 1 else " waits"
        return f"the slot was lost: {waiting[0]}{more} for a new base"


def position_of(place: Delivering) -> Lsn | None:
    """Up to where a stream is delivered, as far as this process knows."""
    delivered = place.state.delivered
    return None if delivered is None else delivered.position.commit_lsn


def _told(error: TailraceError) -> str:
    text = f"{error} ({error.hint})" if error.hint else str(error)
    return sayable(text)[:_REASON_MAX]
