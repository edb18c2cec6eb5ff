"""Where requests for replays are kept, beside the log: one at a time for each stream.

Requests are numbered, each put only if absent behind the newest one, so two operators cannot both
ask. The newest is the one that waits or runs, unless there is an outcome of its number: that alone
says that it is over, and for good. Whatever belongs to a request, also what retention keeps for it,
is named by its number.

So a process that was stopped and wakes late can do no harm: it says something about its own request
only, and it deletes only what was over before it looked. The newest request itself is never
deleted: no number comes back.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tailrace.errors import ConfigError, SegmentCorrupt
from tailrace.failpoint import failpoint
from tailrace.log import layout
from tailrace.log.epochs import Fence
from tailrace.storage import ObjectExists, ObjectMissing, Store
from tailrace.streams.record import StreamRecord
from tailrace.streams.replay.keys import (
    Keys,
    name_of,
    number_of,
    reader_number,
    record_name,
    run_name,
)
from tailrace.streams.replay.outcome import Outcome, outcome_of, outcome_of_unread
from tailrace.streams.replay.request import Request
from tailrace.streams.replay.window import Window

_OUTCOMES_MAX: Final = 20
"""So many are remembered of each stream."""


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
        """Leave a request for the pipeline; nothing happens if it was asked for before. Raises
        ConfigError if the stream has another one.
        """
        keys = Keys(request.stream)
        while True:
            # The number first: whoever asks for the same meanwhile takes it, or a later one.
            newest = self._newest(request.stream)
            if self.outcome(request) is not None or self._is_under_way(request, newest):
                return
            key = keys.request(newest + 1)
            try:
                self._store.put_new(key, request.to_json())
            except ObjectExists:
                continue
            if not self._store.list(keys.requests, after=key):
                return
            # The number was free only because it is long past; or this one is over already.
            self._store.delete([key])

    def _is_under_way(self, request: Request, newest: int) -> bool:
        """Whether it is the newest one; raises ConfigError if that is another, and not over."""
        if not newest or self._is_over(request.stream, newest):
            return False
        other = self.current(request.stream)
        if other is None:
            return False
        if other.id != request.id:
            raise ConfigError(
                f"a replay of {other.window} of stream {request.stream} is under way",
                hint=f"wait for it, or end it: tailrace replay {request.stream} --cancel; "
                "while the stream is paused neither happens",
            )
        return True

    def current(self, stream: str) -> Request | None:
        """The one that waits or runs; raises SegmentCorrupt if it cannot be read."""
        while number := self._under_way(stream):
            # One that vanishes while being read has been outdone: look again.
            with suppress(ObjectMissing):
                return self._read(stream, number)
        return None

    def cancel(self, stream: str) -> Request | None:
        """Let the one that waits or runs end where it is; returns it."""
        request = self.current(stream)
        if request is not None:
            self.cancel_request(request)
        return request

    def cancel_request(self, request: Request) -> None:
        """Let this one end where it is, and no later one."""
        with suppress(ObjectExists):
            self._store.put_new(f"{Keys(request.stream).cancel}{_name(request)}", b"")

    def is_cancelled(self, request: Request) -> bool:
        """Whether somebody wants it to end, or has ended it."""
        keys = Keys(request.stream)
        wanted = f"{keys.cancel}{_name(request)}"
        found = self._store.list(keys.cancel, after=keys.before(keys.cancel, request.number))
        is_wanted = any(entry.key == wanted for entry in found)
        return is_wanted or self._is_over(request.stream, request.number)

    def tell_trouble(self, request: Request, reason: str) -> None:
        """Say why it does not get on, until it does; for who watches, and nobody decides by it."""
        self.clear_trouble(request)
        with suppress(ObjectExists):
            self._store.put_new(_trouble_key(request), reason.encode(errors="replace"))

    def clear_trouble(self, request: Request) -> None:
        """It gets on again."""
        self._store.delete([_trouble_key(request)])

    def _trouble(self, request: Request) -> str:
        try:
            return self._store.get(_trouble_key(request)).decode()
        except ObjectMissing:
            return ""

    def window(self, request: Request) -> Window | None:
        """The range that it means, if that is fixed."""
        try:
            return Window.from_json(self._store.get(_begun_key(request)))
        except ObjectMissing:
            return None

    def begin(self, request: Request, window: Window) -> Window:
        """Fix the range; whoever was faster has decided."""
        failpoint("replay.before_begin")
        with suppress(ObjectExists):
            self._store.put_new(_begun_key(request), window.to_json())
        failpoint("replay.after_begin")
        return self.window(request) or window

    def outcome(self, request: Request) -> Outcome | None:
        """What became of it, if it is over."""
        return self.outcome_of(request.stream, request.id)

    def outcome_of(self, stream: str, request_id: str) -> Outcome | None:
        """What became of the request with this id, if it is over."""
        for entry in self._store.list(Keys(stream).done):
            if entry.key.endswith(f"{name_of(number_of(entry.key), request_id)}.json"):
                with suppress(ObjectMissing):
                    return Outcome.from_json(self._store.get(entry.key))
        return None

    def last(self, stream: str) -> Outcome | None:
        """What became of the newest one that is over."""
        entries = self._store.list(Keys(stream).done)
        return Outcome.from_json(self._store.get(entries[-1].key)) if entries else None

    def finish(self, request: Request, outcome: Outcome, fence: Fence) -> None:
        """It is over: say what became of it, and let the log go. Raises LogFenced if that is for
        another to say.
        """
        failpoint("replay.before_clear")
        fence.check()
        self._end(request.stream, request.number, outcome)
        failpoint("replay.after_outcome")
        self.sweep(request.stream)
        failpoint("replay.after_clear")

    def discard(self, stream: str, fence: Fence) -> Outcome | None:
        """End the request if it cannot be read: nobody can carry it out, and while it is under way
        none can be asked for. Raises LogFenced if that is for another to do.
        """
        fence.check()
        number = self._under_way(stream)
        try:
            if number:
                self._read(stream, number)
        except ObjectMissing:
            return None
        except SegmentCorrupt as error:
            outcome = outcome_of_unread(str(error))
            self._end(stream, number, outcome)
            self.sweep(stream)
            return outcome
        return None

    def end(self, stream: str, note: str) -> None:
        """Whatever waits or runs is over: the stream itself is."""
        try:
            progress = self.progress(stream)
        except SegmentCorrupt:
            self._end(stream, self._newest(stream), outcome_of_unread(note))
        else:
            if progress is not None:
                request, count = progress.request, progress.change_count
                self._end(stream, request.number, outcome_of(request, "cancelled", count, note))
        self.sweep(stream)

    def sweep(self, stream: str) -> None:
        """Delete what belongs to requests that are over, and let their parts of the log go. Once is
        enough, and at any time: what is over stays so.
        """
        keys = Keys(stream)
        newest = self._newest(stream)
        last = newest if self._is_over(stream, newest) else newest - 1
        gone = [
            entry.key
            for folder in (keys.begun, keys.cancel, keys.trouble)
            for entry in self._store.list(folder)
            if number_of(entry.key) <= last
        ]
        for entry in self._store.list(layout.READERS):
            number = reader_number(entry.key, stream)
            if number is not None and number <= last:
                gone.append(entry.key)
        requests = [entry.key for entry in self._store.list(keys.requests)]
        gone += [key for key in requests if number_of(key) < newest]
        gone += [entry.key for entry in self._store.list(keys.done)[:-_OUTCOMES_MAX]]
        self._store.delete(gone)

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

    def _newest(self, stream: str) -> int:
        """The number of the newest request; 0 if there was none."""
        entries = self._store.list(Keys(stream).requests)
        return number_of(entries[-1].key) if entries else 0

    def _under_way(self, stream: str) -> int:
        """The number of the newest request if it is not over, else 0."""
        newest = self._newest(stream)
        return 0 if self._is_over(stream, newest) else newest

    def _is_over(self, stream: str, number: int) -> bool:
        keys = Keys(stream)
        found = self._store.list(keys.done, after=keys.before(keys.done, number))
        return any(number_of(entry.key) == number for entry in found)

    def _read(self, stream: str, number: int) -> Request:
        found = Request.from_json(self._store.get(Keys(stream).request(number)))
        return replace(found, number=number)

    def _end(self, stream: str, number: int, outcome: Outcome) -> None:
        with suppress(ObjectExists):
            key = f"{Keys(stream).done}{name_of(number, outcome.id)}.json"
            self._store.put_new(key, outcome.to_json())


def _name(request: Request) -> str:
    assert request.number, "a request has a number once it was asked for"
    return name_of(request.number, request.id)


def _begun_key(request: Request) -> str:
    return f"{Keys(request.stream).begun}{_name(request)}.json"


def _trouble_key(request: Request) -> str:
    return f"{Keys(request.stream).trouble}{_name(request)}"
