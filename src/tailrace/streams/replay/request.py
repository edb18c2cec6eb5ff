"""What an operator asks for when something is to be delivered once more."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from tailrace.errors import ConfigError, SegmentCorrupt
from tailrace.model import Offset

Bound: TypeAlias = int | Offset
"""A commit time in microseconds since 1970, or a position in the log."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that was committed from `since` to `until`, both times included; of positions,
    what comes after the first and up to the second.

    `tables` and `key`, names and values of columns, leave out the others. `to_sink` describes
    another sink than the stream's, in the words of the configuration. `rate` is how many changes a
    second it may be, 0 for as many as it can. `via` says which interface it came by. `number` is
    its place among the requests of the stream, 0 until it was asked for.
    """

    id: str
    stream: str
    since: Bound
    until: Bound
    tables: tuple[str, ...] = ()
    key: tuple[tuple[str, str], ...] = ()
    to_sink: str = ""
    rate: int = 0
    who: str = ""
    via: str = "cli"
    number: int = field(default=0, compare=False)

    @classmethod
    def new(
        cls,
        stream: str,
        since: Bound,
        until: Bound | None,
        *,
        now: datetime,
        tables: Sequence[str] = (),
        key: Sequence[tuple[str, str]] = (),
        to_sink: str = "",
        rate: int = 0,
        who: str = "",
        via: str = "cli",
        request_id: str = "",
    ) -> Request:
        """One with an id that sorts by time, unless it has one; raises ConfigError if it can never
        be carried out. Without `until` it is up to now.
        """
        now_us = to_us(now)
        until = now_us if until is None else until
        _check(since, until, now_us)
        return cls(
            *(request_id or new_id(now), stream, since, until, tuple(tables), tuple(key)),
            *(to_sink, rate, who, via),
        )

    @property
    def window(self) -> str:
        """For people."""
        return show_window(self.since, self.until)

    def to_json(self) -> bytes:
        """As stored."""
        value = {
            "id": self.id,
            "stream": self.stream,
            "since": _bound_to_json(self.since),
            "until": _bound_to_json(self.until),
            "tables": self.tables,
            "key": self.key,
            "to_sink": self.to_sink,
            "rate": self.rate,
            "who": self.who,
            "via": self.via,
        }
        return json.dumps(value, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Request:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            value = json.loads(data)
            return cls(
                id=value["id"],
                stream=value["stream"],
                since=_bound_from_json(value["since"]),
                until=_bound_from_json(value["until"]),
                tables=tuple(value["tables"]),
                key=tuple((name, text) for name, text in value["key"]),
                to_sink=value["to_sink"],
                rate=value["rate"],
                who=value["who"],
                via=value["via"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SegmentCorrupt("a request for a replay cannot be read") from error


def _check(since: Bound, until: Bound, now_us: int) -> None:
    if isinstance(since, int) and since > now_us:
        raise ConfigError(
            f"{show_bound(since)} is in the future: nothing was committed then",
            hint="a replay delivers what was delivered before",
        )
    is_inverted = (
        since > until
        if isinstance(since, int) and isinstance(until, int)
        else isinstance(since, Offset) and isinstance(until, Offset) and since > until
    )
    if is_inverted:
        raise ConfigError(
            f"the replay would begin at {show_bound(since)}, after its end at {show_bound(until)}",
            hint="exchange the two",
        )


def new_id(now: datetime) -> str:
    """One that sorts by time."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(4)}"


def to_us(moment: datetime) -> int:
    """In microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_time(time_us: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


def show_window(since: Bound, until: Bound) -> str:
    """For people."""
    return f"{show_bound(since)} to {show_bound(until)}"


def show_bound(bound: Bound) -> str:
    """For people: a time in UTC, or a position."""
    return str(bound) if isinstance(bound, Offset) else str(to_time(bound))


def _bound_to_json(bound: Bound) -> int | str:
    return bound.to_json() if isinstance(bound, Offset) else bound


def _bound_from_json(value: int | str) -> Bound:
    return Offset.from_json(value) if isinstance(value, str) else int(value)
