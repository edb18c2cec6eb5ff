"""Where requests for replays are kept, beside the log: one at a time for each stream.

    replays/<stream>/request.json      what is asked for; gone when it is over
    replays/<stream>/begun/<id>.json   the range that it means
    replays/<stream>/cancel/<id>       somebody wants it to end
    replays/<stream>/trouble/<id>      why it does not get on for now
    replays/<stream>/done/<id>.json    what became of it

The request is put only if absent, so two operators cannot both ask. What becomes of it is put
before the request is deleted: whoever finds both only has to delete.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from tailrace.errors import ConfigError, SegmentCorrupt
from tailrace.failpoint import failpoint
from tailrace.log import layout
from tailrace.log.epochs import Fence
from tailrace.sinks.sink import REPLAY_SUFFIX
from tailrace.storage import ObjectExists, ObjectMissing, Store
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay.request import Request, new_id
from tailrace.streams.replay.window import Window

_OUTCOMES_MAX: Final = 20
"""So many are remembered of each stream."""

State = Literal["done", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request: how many changes were delivered, and why it was not more."""

    id: str
    state: State
    window: str
    change_count: int
    note: str
    ended_at: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replay is; `share` is 0 until it has begun. `trouble` is why it does not get on, if
    it is being tried again.
    """

    request: Request
    has_begun: bool = False
    share: float = 0.0
    change_count: int = 0
    note: str = ""
    trouble: str = ""


class Replays:
    """The replays of the streams of one log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ask(self, request: Request) -> None:
        """Leave a request for the pipeline; raises ConfigError if the stream has one."""
        try:
            self._store.put_new(layout.replay_key(request.stream), request.to_json())
        except ObjectExists as error:
            other = self.current(request.stream)
            told = f" of {other.window}" if other is not None else ""
            raise ConfigError(
                f"a replay{told} of stream {request.stream} is under way",
                hint=f"wait for it, or end it: tailrace replay {request.stream} --cancel",
            ) from error

    def current(self, stream: str) -> Request | None:
        """The one that waits or runs; raises SegmentCorrupt if it cannot be read."""
        try:
            return Request.from_json(self._store.get(layout.replay_key(stream)))
        except ObjectMissing:
            return None

    def cancel(self, stream: str) -> Request | None:
        """Let the one that waits or runs end where it is; returns it."""
        request = self.current(stream)
        if request is not None:
            with suppress(ObjectExists):
                self._store.put_new(f"{layout.replay_prefix(stream)}cancel/{request.id}", b"")
        return request

    def is_cancelled(self, request: Request) -> bool:
        """Whether somebody wants it to end."""
        wanted = f"{layout.replay_prefix(request.stream)}cancel/{request.id}"
        return any(entry.key == wanted for entry in self._store.list(_folder(request, "cancel")))

    def tell_trouble(self, request: Request, reason: str) -> None:
        """Say why it does not get on, until it does; for who watches, and nobody decides by it."""
        self.clear_trouble(request)
        with suppress(ObjectExists):
            self._store.put_new(f"{_folder(request, 'trouble')}{request.id}", reason.encode())

    def clear_trouble(self, request: Request) -> None:
        """It gets on again, or is over."""
        entries = self._store.list(_folder(request, "trouble"))
        self._store.delete([entry.key for entry in entries])

    def _trouble(self, request: Request) -> str:
        try:
            return self._store.get(f"{_folder(request, 'trouble')}{request.id}").decode()
        except ObjectMissing:
            return ""

    def window(self, request: Request) -> Window | None:
        """The range that it means, if that is fixed."""
        try:
            return Window.from_json(self._store.get(_key(request, "begun")))
        except ObjectMissing:
            return None

    def begin(self, request: Request, window: Window) -> Window:
        """Fix the range; whoever was faster has decided."""
        failpoint("replay.before_begin")
        with suppress(ObjectExists):
            self._store.put_new(_key(request, "begun"), window.to_json())
        failpoint("replay.after_begin")
        return self.window(request) or window

    def outcome(self, request: Request) -> Outcome | None:
        """What became of it, if it is over."""
        return self.outcome_of(request.stream, request.id)

    def outcome_of(self, stream: str, request_id: str) -> Outcome | None:
        """What became of the request with this id, if it is over."""
        try:
            return _outcome(
                self._store.get(f"{layout.replay_prefix(stream)}done/{request_id}.json")
            )
        except ObjectMissing:
            return None

    def last(self, stream: str) -> Outcome | None:
        """What became of the newest one that is over."""
        entries = self._store.list(f"{layout.replay_prefix(stream)}done/")
        return _outcome(self._store.get(entries[-1].key)) if entries else None

    def finish(self, request: Request, outcome: Outcome, fence: Fence) -> None:
        """It is over: say what became of it, let the log go, then forget the request. Raises
        LogFenced if that is for another to do: by now there may be another request.
        """
        failpoint("replay.before_clear")
        with suppress(ObjectExists):
            self._store.put_new(_key(request, "done"), json.dumps(asdict(outcome)).encode())
        failpoint("replay.after_outcome")
        fence.check()
        StreamRecord(self._store, record_name(request.stream)).release()
        old = self._store.list(_folder(request, "done"))[:-_OUTCOMES_MAX]
        self._store.delete([*(entry.key for entry in old), layout.replay_key(request.stream)])
        rest = [
            _key(request, "begun"),
            f"{layout.replay_prefix(request.stream)}cancel/{request.id}",
        ]
        self._store.delete(rest)
        self.clear_trouble(request)
        failpoint("replay.after_clear")

    def discard(self, stream: str, reason: str, fence: Fence) -> Outcome:
        """End a request that cannot be read: nobody can carry it out, and while it is there none
        can be asked for. Raises LogFenced if that is for another to do.
        """
        fence.check()
        now = datetime.now(UTC)
        at = now.isoformat(timespec="seconds")
        outcome = Outcome(new_id(now), "failed", "a window that is not known", 0, reason, at)
        key = f"{layout.replay_prefix(stream)}done/{outcome.id}.json"
        self._store.put_new(key, json.dumps(asdict(outcome)).encode())
        StreamRecord(self._store, record_name(stream)).release()
        self._store.delete([layout.replay_key(stream)])
        return outcome

    def progress(self, stream: str) -> Progress | None:
        """How far the one that waits or runs is."""
        request = self.current(stream)
        if request is None:
            return None
        window, trouble = self.window(request), self._trouble(request)
        if window is None:
            return Progress(request, trouble=trouble)
        record = StreamRecord(self._store, record_name(stream))
        newest = record.newest()
        if newest is None or newest.selection != run_name(request):
            return Progress(request, has_begun=True, note=window.note, trouble=trouble)
        is_done = record.is_done(newest)
        position, count = (
            (newest.upto, newest.count_after) if is_done else (newest.after, newest.count_before)
        )
        span = window.end.commit_lsn - window.start.commit_lsn
        done = position.commit_lsn - window.start.commit_lsn
        share = min(1.0, done / span) if span else 1.0
        return Progress(request, True, share, count, window.note, trouble)


def record_name(stream: str) -> str:
    """The name under which the replays of a stream are recorded."""
    return f"{stream}{REPLAY_SUFFIX}"


def run_name(request: Request) -> str:
    """How the record tells the batches of one replay from those of another."""
    return f"replay {request.id}"


def outcome_of(request: Request, state: State, change_count: int, note: str) -> Outcome:
    """What becomes of it now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Outcome(request.id, state, request.window, change_count, note, now)


def _outcome(data: bytes) -> Outcome:
    try:
        return Outcome(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise SegmentCorrupt("the outcome of a replay cannot be read") from error


def _folder(request: Request, level: str) -> str:
    return f"{layout.replay_prefix(request.stream)}{level}/"


def _key(request: Request, level: str) -> str:
    return f"{_folder(request, level)}{request.id}.json"
