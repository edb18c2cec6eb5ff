"""What an operator asks for about dead letters, and how the pipeline carries it out.

A request is an object that the pipeline finds, carries out between two batches and deletes; what
became of it is kept in the audit. So only one process ever sends a stream's messages, and a lane
that is redriven is closed to newer ones until the last of its letters is delivered.

Done again after a crash, a redrive sends letters again that were delivered and not yet deleted: at
most one window, with the same event ids, in the same order, and still before anything newer of
their lanes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from tailrace.errors import SegmentCorrupt, SinkError
from tailrace.failpoint import failpoint
from tailrace.sinks.letters.dead_letter import DeadLetters, lanes_of, root_of
from tailrace.sinks.letters.letter import LetterName
from tailrace.sinks.letters.message import TABLE_LANE, Message
from tailrace.sinks.letters.parked import Parked, ToPark
from tailrace.storage import ObjectExists, ObjectMissing, Store

_LETTERS_AT_ONCE: Final = 1000
_BEHIND: Final = "behind another letter"
_OUTDONE: Final = "its table was loaded or emptied since"


@dataclass(frozen=True, slots=True)
class Portion:
    """So much is sent before those of it that have arrived are deleted."""

    letter_count: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of messages, by their places: delivered; refused, or behind one that is; and why
    the rest was not tried, if there is any.
    """

    delivered: frozenset[str]
    refused: dict[str, ToPark]
    error: SinkError | None


Send = Callable[[Sequence[Message], Parked], Sent]


@dataclass(frozen=True, slots=True)
class Request:
    """`letters` are the keys of those that are meant; all that wait if empty. A redrive takes the
    whole lanes of them, because none can go before the ones ahead of it.
    """

    id: str
    action: Literal["redrive", "discard"]
    letters: tuple[str, ...]
    who: str

    @classmethod
    def new(
        cls, action: Literal["redrive", "discard"], letters: Iterable[str], *, who: str, now: float
    ) -> Request:
        """One with an id that sorts by time."""
        at = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S%f")
        return cls(f"{at}-{secrets.token_hex(4)}", action, tuple(letters), who)


@dataclass(frozen=True, slots=True)
class Audit:
    """What became of a request: the places of the letters that are gone, and for those that are
    not, why.
    """

    request: Request
    at: str
    done: tuple[str, ...]
    failed: dict[str, str]
    error: str = ""


class Requests:
    """The requests about one stream."""

    def __init__(self, store: Store, stream: str) -> None:
        self._store = store
        self._requests = f"{root_of(stream)}requests/"
        self._audit = f"{root_of(stream)}audit/"

    def ask(self, request: Request) -> None:
        """Leave a request for the pipeline."""
        self._store.put_new(self._key(request), json.dumps(asdict(request)).encode())

    def pending(self) -> list[Request]:
        """Those that nobody has carried out, oldest first."""
        found = []
        for entry in self._store.list(self._requests):
            with suppress(ObjectMissing):
                found.append(self._read(entry.key))
        return found

    def finish(self, request: Request) -> None:
        """It is carried out."""
        self._store.delete([self._key(request)])

    def end(self, why: str, *, now: float) -> None:
        """Nobody carries out what waits any more; the audit says why of what can be read."""
        at = datetime.fromtimestamp(now, UTC).isoformat()
        for entry in self._store.list(self._requests):
            with suppress(ObjectMissing, SegmentCorrupt, ValueError):
                self.record(Audit(self._read(entry.key), at, (), {}, why))
            self._store.delete([entry.key])

    def record(self, audit: Audit) -> None:
        """Keep the audit line; one of an earlier try stays."""
        with suppress(ObjectExists):
            self._store.put_new(f"{self._audit}{audit.request.id}.json", _json(audit))

    def audit(self, request_id: str) -> Audit | None:
        """What became of a request; None if nothing has yet."""
        try:
            value = json.loads(self._store.get(f"{self._audit}{request_id}.json"))
        except ObjectMissing:
            return None
        try:
            request = _request(value.pop("request"))
            done, failed = tuple(value["done"]), value["failed"]
            return Audit(request, value["at"], done, failed, value["error"])
        except (KeyError, TypeError) as error:
            raise SegmentCorrupt(f"the audit of {request_id} cannot be read") from error

    def _read(self, key: str) -> Request:
        return _request(json.loads(self._store.get(key)))

    def _key(self, request: Request) -> str:
        return f"{self._requests}{request.id}.json"


def carry_out(
    request: Request,
    requests: Requests,
    letters: DeadLetters,
    send: Send,
    *,
    portion: Portion,
    now: float,
    is_whole: bool = False,
) -> tuple[str, ...]:
    """Do what is asked for and record it; returns the places of the letters that are gone. No more
    than a portion is sent before those that have arrived are deleted. If letters are whole, the
    newest of a lane stands for those before it. Raises LogFenced.
    """
    names, at = letters.names(), datetime.fromtimestamp(now, UTC).isoformat()
    # By place: an epoch that takes the stream over gives its letters other keys.
    meant = frozenset(key.rsplit("/", 1)[-1].partition(".")[0] for key in request.letters)
    chosen = [name for name in names if not meant or name.place in meant]
    if request.action == "discard":
        failpoint("discard.before_audit")
        audit = Audit(request, at, tuple(name.place for name in chosen), {})
        requests.record(audit)
        failpoint("discard.after_audit")
        letters.remove(chosen)
    else:
        lanes = lanes_of(chosen)
        audit = _redrive(request, letters, names, lanes, send, portion, at, is_whole=is_whole)
        failpoint("redrive.before_audit")
        requests.record(audit)
        failpoint("redrive.after_audit")
    requests.finish(request)
    return audit.done


def _redrive(
    request: Request,
    letters: DeadLetters,
    names: Sequence[LetterName],
    lanes: set[tuple[str, str]],
    send: Send,
    portion: Portion,
    at: str,
    *,
    is_whole: bool,
) -> Audit:
    # A barrier of the same tables decides what may pass it, also if it was not asked for.
    lanes |= {(code, TABLE_LANE) for code, _ in lanes}
    failed = dict.fromkeys((name.place for name in names if name.is_outdone), _OUTDONE)
    waiting = [name for name in names if not name.is_outdone]
    parked = Parked.of(lanes_of(waiting) - lanes)
    chosen = [name for name in waiting if (name.table_code, name.lane) in lanes]
    done: list[str] = []
    error = ""
    older = _older(chosen) if is_whole else {}
    if is_whole:
        chosen = [name for name in chosen if name.place in older]
    for some in _pieces(chosen, portion):
        failpoint("redrive.before_send")
        sent = send(letters.messages(some), parked)
        failpoint("redrive.after_send")
        arrived = [name for name in some if name.place in sent.delivered]
        gone = [each for name in arrived for each in (*older.get(name.place, ()), name)]
        letters.remove(gone)
        done.extend(name.place for name in gone)
        for place, park in sent.refused.items():
            failed[place] = str(park.failure) if park.failure else _BEHIND
            failed |= dict.fromkeys((name.place for name in older.get(place, ())), _BEHIND)
        if sent.error is not None:
            error = str(sent.error)
            break
    return Audit(request, at, tuple(done), failed, error)


def _older(names: Sequence[LetterName]) -> dict[str, list[LetterName]]:
    """By the place of the newest letter of each lane, those before it."""
    lanes: dict[tuple[str, str], list[LetterName]] = {}
    for name in names:
        lanes.setdefault((name.table_code, name.lane), []).append(name)
    return {some[-1].place: some[:-1] for some in lanes.values()}


def _pieces(names: Sequence[LetterName], portion: Portion) -> Iterator[list[LetterName]]:
    """In order, each no larger than a portion; a letter is larger than its message."""
    count_max = min(_LETTERS_AT_ONCE, portion.letter_count)
    some: list[LetterName] = []
    size = 0
    for name in names:
        if some and (len(some) == count_max or size + name.size > portion.bytes_max):
            yield some
            some, size = [], 0
        some.append(name)
        size += name.size
    if some:
        yield some


def _request(value: dict[str, object]) -> Request:
    match value:
        case {"id": str(id_), "action": "redrive" | "discard" as action, "letters": list(letters)}:
            return Request(id_, action, tuple(map(str, letters)), str(value.get("who", "")))
    raise SegmentCorrupt("a request about dead letters cannot be read")


def _json(audit: Audit) -> bytes:
    return json.dumps(asdict(audit), ensure_ascii=False).encode()
