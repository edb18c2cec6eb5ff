"""What an operator asks for about dead letters, and how the pipeline carries it out.

A request is an object that the pipeline finds, carries out between batches and deletes; what
became of it is kept in the audit. So only one process ever sends a stream's messages, and a lane
that is redriven is closed to newer ones until the last of its letters is delivered.

Done again after a crash, a redrive sends letters again that were delivered and not yet deleted: at
most one window, with the same event ids, in the same order, and still before anything newer of
their lanes.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
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


Lane = tuple[str, str]
"""The code of a table, and a lane of it."""

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


class Errand:
    """A request that is carried out turn by turn. Between two turns, which are for whoever holds
    the sink, a batch may be delivered: a letter that was not sent yet parks its lane as ever, and
    what came behind it meanwhile is sent behind it.
    """

    def __init__(
        self,
        request: Request,
        requests: Requests,
        letters: DeadLetters,
        send: Send,
        *,
        portion: Portion,
        now: float,
        is_whole: bool = False,
    ) -> None:
        """No more than a portion is sent before those that have arrived are deleted.
        If letters are whole, the newest of a lane stands for those before it.
        """
        self._request = request
        self._requests = requests
        self._letters = letters
        self._send = send
        self._portion = portion
        self._is_whole = is_whole
        self._at = datetime.fromtimestamp(now, UTC).isoformat()
        # By place: an epoch that takes the stream over gives its letters other keys.
        self._meant = frozenset(key.rsplit("/", 1)[-1].partition(".")[0] for key in request.letters)
        self._lanes = {_lane_of(key) for key in request.letters}
        self._codes: set[str] | None = None
        self._held: set[Lane] = set()
        """Lanes that were not asked for, or of which a letter was refused."""
        self._pieces: deque[list[LetterName]] = deque()
        self._older: dict[str, list[LetterName]] = {}
        self._parked = Parked()
        self._failed: dict[str, str] = {}
        self._error = ""
        self._put_before = letters.put_count
        self._tried = 0
        self.done: list[str] = []
        """The places of the letters that are gone."""
        self.is_over = False

    def turn(self, must_go_on: Callable[[], None]) -> list[str]:
        """Some more of it, while nobody delivers: as much as has come to wait since the last turn,
        and a portion, or it would never end. Returns the places of the letters that are gone by
        that. The last turn records what became of it all. `must_go_on` may raise, before each
        portion, and if one has failed. Raises LogFenced.
        """
        before, tried = len(self.done), self._tried
        came = self._letters.put_count - self._put_before
        self._put_before += came
        self._step(must_go_on)
        portion = self._tried - tried
        while not self.is_over and self._tried < tried + portion + came:
            self._step(must_go_on)
        return self.done[before:]

    def _step(self, must_go_on: Callable[[], None]) -> None:
        must_go_on()
        if self._request.action == "discard":
            self._discard()
        else:
            self._redrive(must_go_on)
        if self.is_over:
            self._requests.finish(self._request)

    def _discard(self) -> None:
        chosen = [name for name in self._letters.names() if self._means(name)]
        self.done = [name.place for name in chosen]
        failpoint("discard.before_audit")
        self._requests.record(self._audit())
        failpoint("discard.after_audit")
        self._letters.remove(chosen)
        self.is_over = True

    def _redrive(self, must_go_on: Callable[[], None]) -> None:
        is_all_known = not self._pieces
        if is_all_known:
            self._look()
        if self._pieces:
            self._send_piece(self._pieces.popleft(), must_go_on)
        # With a piece that is left to the next step, more may come to wait.
        self.is_over = bool(self._error) or (is_all_known and not self._pieces)
        if self.is_over:
            failpoint("redrive.before_audit")
            self._requests.record(self._audit())
            failpoint("redrive.after_audit")

    def _look(self) -> None:
        """Find what is to be sent now."""
        names = self._letters.names()
        self._failed |= dict.fromkeys((name.place for name in names if name.is_outdone), _OUTDONE)
        waiting = [name for name in names if not name.is_outdone]
        lanes = lanes_of(waiting)
        if self._codes is None:
            # A run before may have delivered the letter that was named, and not what is behind it.
            self._codes = {code for code, _ in self._lanes or lanes_of(names)}
        if self._lanes:
            # Others may have come to wait meanwhile. But a barrier of the same tables decides what
            # may pass it, also if it was not asked for.
            self._held |= lanes - self._lanes - {(code, TABLE_LANE) for code in self._codes}
        chosen = [
            name
            for name in waiting
            if name.table_code in self._codes and name.table_lane not in self._held
        ]
        self._parked = Parked.of(_in_the_way(waiting, chosen) & self._held)
        self._older = _older(chosen) if self._is_whole else {}
        if self._is_whole:
            chosen = [name for name in chosen if name.place in self._older]
        self._pieces.extend(_pieces(chosen, self._portion))

    def _send_piece(self, piece: list[LetterName], must_go_on: Callable[[], None]) -> None:
        self._tried += sum(1 + len(self._older.get(name.place, ())) for name in piece)
        some = self._letters.still_waiting(piece)
        self._failed |= dict.fromkeys({n.place for n in piece} - {n.place for n in some}, _OUTDONE)
        failpoint("redrive.before_send")
        sent = self._send(self._letters.messages(some), self._parked)
        failpoint("redrive.after_send")
        arrived = [name for name in some if name.place in sent.delivered]
        gone = [each for name in arrived for each in (*self._older.get(name.place, ()), name)]
        self._letters.remove(gone)
        self.done.extend(name.place for name in gone)
        self._held |= lanes_of(name for name in some if name.place not in sent.delivered)
        for place, park in sent.refused.items():
            self._failed[place] = str(park.failure) if park.failure else _BEHIND
            behind = (name.place for name in self._older.get(place, ()))
            self._failed |= dict.fromkeys(behind, _BEHIND)
        if sent.error is not None:
            # If that is because the stream stops, the next run carries the request out.
            must_go_on()
            self._error = str(sent.error)

    def _means(self, name: LetterName) -> bool:
        return not self._meant or name.place in self._meant

    def _audit(self) -> Audit:
        return Audit(self._request, self._at, tuple(self.done), self._failed, self._error)


def _lane_of(key: str) -> Lane:
    code, lane, _ = key.split("/")[-3:]
    return code, lane


def _in_the_way(waiting: Sequence[LetterName], chosen: Sequence[LetterName]) -> set[Lane]:
    """The lanes that some of the chosen may have to wait for: of a row only if it waits before the
    last barrier of its table that is chosen, for nothing else waits for another row.
    """
    barriers = {name.table_code: name.place for name in chosen if name.lane == TABLE_LANE}
    return {
        name.table_lane
        for name in waiting
        if name.lane == TABLE_LANE or name.place < barriers.get(name.table_code, "")
    }


def _older(names: Sequence[LetterName]) -> dict[str, list[LetterName]]:
    """By the place of the newest letter of each lane, those before it."""
    lanes: dict[Lane, list[LetterName]] = {}
    for name in names:
        lanes.setdefault(name.table_lane, []).append(name)
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
