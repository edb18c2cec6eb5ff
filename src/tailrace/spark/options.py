"""What a reader of the `tailrace` format may be told, and what that means in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from tailrace.errors import ConfigError, TailraceError
from tailrace.log import Reader
from tailrace.log.plan import Limits, offset_at_time, offset_before_time
from tailrace.model import Offset
from tailrace.storage import open_store

ERROR_PREFIX: Final = "tailrace: "
"""Begins the one line of a Spark error that says what happened."""

BATCH_BYTES: Final = 64 << 20
NO_LIMIT: Final = 1 << 62

_KNOWN: Final = (
    "log",
    "table",
    "columns",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "maxBytesPerTrigger",
    "maxChangesPerTrigger",
)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Mark our own errors, so that they can be found in the traceback that Spark makes of them."""
    try:
        yield
    except TailraceError as error:
        if str(error).startswith(ERROR_PREFIX):
            raise
        hint = f" ({error.hint})" if error.hint else ""
        raise type(error)(f"{ERROR_PREFIX}{error}{hint}", retry=error.retry) from error


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read of one table."""

    log: str
    table: str
    columns: tuple[str, ...] | None
    starting: str
    ending: str
    starting_time_us: int | None
    ending_time_us: int | None
    changes_max: int | None
    bytes_max: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read Spark's options, whose keys are in any case; raises ConfigError."""
        given = {key.lower(): value for key, value in options.items()}
        unknown = set(given) - {name.lower() for name in _KNOWN} - {"path"}
        if unknown:
            raise ConfigError(
                f"the tailrace format has no option {sorted(unknown)[0]}",
                hint=f"options: {', '.join(_KNOWN)}",
            )
        for needed in ("log", "table"):
            if not given.get(needed):
                raise ConfigError(f"the tailrace format needs the option {needed}")
        columns = given.get("columns")
        return cls(
            log=given["log"],
            table=given["table"],
            columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
            starting=given.get("startingoffset", "earliest"),
            ending=given.get("endingoffset", "latest"),
            starting_time_us=_time_us(given, "startingtimestamp"),
            ending_time_us=_time_us(given, "endingtimestamp"),
            changes_max=_count(given, "maxchangespertrigger"),
            bytes_max=_count(given, "maxbytespertrigger"),
        )

    def reader(self) -> Reader:
        """A new view of the log."""
        return Reader(open_store(self.log))

    @property
    def limits(self) -> Limits:
        """How much one micro-batch may hold."""
        return Limits(self.changes_max or NO_LIMIT, self.bytes_max or BATCH_BYTES)

    def start(self, reader: Reader) -> Offset:
        """The position after which to read."""
        if self.starting_time_us is not None:
            return offset_before_time(reader, self.starting_time_us)
        return _position(reader, self.starting, "startingOffset")

    def end(self, reader: Reader) -> Offset:
        """The position up to which to read."""
        if self.ending_time_us is not None:
            return offset_at_time(reader, self.ending_time_us)
        return _position(reader, self.ending, "endingOffset")


def _position(reader: Reader, text: str, option: str) -> Offset:
    match text:
        case "earliest":
            return Offset.whole(reader.begin())
        case "latest":
            return Offset.whole(reader.tip().segment_end)
    try:
        return Offset.from_json(text) if text.startswith("{") else Offset.parse(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{option} {text!r} is not a position", hint="earliest, latest, 0/16B3748, 0/16B3748:3"
        ) from error


def _time_us(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is not a time", hint="e.g. 2026-01-15 10:00:00+00"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since = moment - epoch
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{option} {text!r} is not a positive number")
    return int(text)
