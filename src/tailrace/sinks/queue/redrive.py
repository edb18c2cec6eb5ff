"""What an operator asks for about dead letters, and how the pipeline carries it out.

A request is an object that the pipeline finds, carries out between two batches and deletes; what
became of it is kept in the audit. So only one process ever sends a stream's messages, and a lane
that is redriven is closed to newer ones until the last of its letters is delivered.

Done again after a crash, a redrive sends letters again that were delivered and not yet deleted:
with the same event ids, in the same order, and still before anything newer of their lanes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from tailrace.errors import SegmentCorrupt
from tailrace.failpoint import failpoint
from tailrace.sinks.queue.dead_letter import DeadLetters, lanes_of, root_of
from tailrace.sinks.queue.letter import LetterName
from tailrace.sinks.queue.message import TABLE_LANE, Message
from tailrace.sinks.queue.outlet import Sent
from tailrace.sinks.queue.parked import Parked
from tailrace.storage import ObjectExists, ObjectMissing, Store

_LETTERS_AT_ONCE: Final = 1000

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
                found.append(_request(json.loads(self._store.get(entry.key))))
        return found

    def finish(self, request: Request) -> None:
        """It is carried out."""
        self._store.delete([self._key(request)])

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

    def _key(self, request: Request) -> str:
        return f"{self._requests}{request.id}.json"


def carry_out(
    request: Request, requests: Requests, letters: DeadLetters, send: Send, *, now: float
) -> tuple[str, ...]:
    """Do what is asked for and record it; returns the places of the letters that are gone."""
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
        audit = _redrive(request, letters, names, lanes_of(chosen), send, at)
        failpoint("redrive.before_audit")
        requests.record(audit)
    requests.finish(request)
    return audit.done


def _redrive(
    request: Request,
    letters: DeadLetters,
    names: Sequence[LetterName],
    lanes: set[tuple[str, str]],
    send: Send,
    at: str,
) -> Audit:
    # A barrier of the same tables decides what may pass it, also if it was not asked for.
    lanes |= {(code, TABLE_LANE) for code, _ in lanes}
    failed = {name.place: "its table was loaded anew since" for name in names if name.is_outdone}
    waiting = [name for name in names if not name.is_outdone]
    parked = Parked.of(lanes_of(waiting) - lanes)
    chosen = [name for name in waiting if (name.table_code, name.lane) in lanes]
    done: list[str] = []
    error = ""
    for first in range(0, len(chosen), _LETTERS_AT_ONCE):
        some = chosen[first : first + _LETTERS_AT_ONCE]
        failpoint("redrive.before_send")
        sent = send([letters.read(name).message for name in some], parked)
        failpoint("redrive.after_send")
        letters.remove([name for name in some if name.place in sent.delivered])
        done.extend(name.place for name in some if name.place in sent.delivered)
        for place, park in sent.refused.items():
            failed[place] = str(park.failure) if park.failure else "behind another letter"
        if sent.error is not None:
            error = str(sent.error)
            break
    return Audit(request, at, tuple(done), failed, error)


def _request(value: dict[str, object]) -> Request:
    match value:
        case {"id": str(id_), "action": "redrive" | "discard" as action, "letters": list(letters)}:
            return Request(id_, action, tuple(map(str, letters)), str(value.get("who", "")))
    raise SegmentCorrupt("a request about dead letters cannot be read")


def _json(audit: Audit) -> bytes:
    return json.dumps(asdict(audit), ensure_ascii=False).encode()
