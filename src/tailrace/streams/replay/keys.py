"""The names of a stream's requests for replays, beside the log.

replays/<stream>/request/<n>.json      what is asked for, by its number
replays/<stream>/begun/<n>-<id>.json   the range that it means
replays/<stream>/cancel/<n>-<id>       somebody wants it to end
replays/<stream>/trouble/<n>-<id>      why it does not get on for now
replays/<stream>/done/<n>-<id>.json    what became of it
readers/<stream>.replay.<n>/<position> what of the log is kept for it
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.log import layout
from tailrace.sinks.sink import REPLAY_SUFFIX
from tailrace.streams.replay.request import Request


@dataclass(frozen=True, slots=True)
class Keys:
    """The folders of one stream."""

    stream: str

    @property
    def requests(self) -> str:
        """Of what is asked for."""
        return self._folder("request")

    @property
    def begun(self) -> str:
        """Of ranges."""
        return self._folder("begun")

    @property
    def cancel(self) -> str:
        """Of what somebody wants to end."""
        return self._folder("cancel")

    @property
    def trouble(self) -> str:
        """Of what is in the way."""
        return self._folder("trouble")

    @property
    def done(self) -> str:
        """Of outcomes."""
        return self._folder("done")

    def request(self, number: int) -> str:
        """The name of the n-th request."""
        return f"{self.requests}{number:016d}.json"

    def before(self, folder: str, number: int) -> str:
        """What is just before everything about the n-th request in a folder."""
        return f"{folder}{number:016d}"

    def _folder(self, level: str) -> str:
        return f"{layout.replay_prefix(self.stream)}{level}/"


def name_of(number: int, request_id: str) -> str:
    """How whatever is about one request is named; sorts as requests were asked."""
    return f"{number:016d}-{request_id}"


def number_of(key: str) -> int:
    """The number of the request that a key is about."""
    return int(key.rsplit("/", 1)[-1][:16])


def record_name(stream: str) -> str:
    """The name under which the replays of a stream are recorded."""
    return f"{stream}{REPLAY_SUFFIX}"


def reader_name(request: Request) -> str:
    """The name under which retention keeps the log for one replay, and for no other."""
    return f"{record_name(request.stream)}.{request.number}"


def reader_number(key: str, stream: str) -> int | None:
    """The number of the request of this stream that a reader's key is about, if it is."""
    name = key.split("/")[1]
    first = f"{record_name(stream)}."
    return int(name.removeprefix(first)) if name.startswith(first) else None


def run_name(request: Request) -> str:
    """How the record tells the batches of one replay from those of another."""
    return f"replay {request.id}"
