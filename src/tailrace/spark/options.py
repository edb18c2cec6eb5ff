"""What a reader of the `tailrace` format may be told, and what that means in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from tailrace.errors import ConfigError, LogError, StoreError, TailraceError
from tailrace.log import Reader
from tailrace.log.plan import Limits, offset_at_time, offset_before_time
from tailrace.model import Offset
from tailrace.spark.place import BEFORE_BASE, Place
from tailrace.spark.whole import newest_base
from tailrace.storage import is_outage, open_store

ERROR_PREFIX: Final = "tailrace: "
"""Begins the one line of a Spark error that says what happened."""

BATCH_BYTES: Final = 64 << 20
NO_LIMIT: Final = 1 << 62
BASE: Final = "base"
"""The start of a read that begins with the table's base."""

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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Mark our own errors, so that they can be found in the traceback that Spark makes of them.

    Only the text survives: the class that is left alone tells whether to try again.
    """
    try:
        yield
    except TailraceError as error:
        if str(error).startswith(ERROR_PREFIX):
            raise
        hint = f" ({error.hint})" if error.hint else ""
        raise _told_by_class(error)(f"{ERROR_PREFIX}{error}{hint}") from error


def _told_by_class(error: TailraceError) -> type[TailraceError]:
    if error.retry or is_outage(error):
        return StoreError
    return LogError if type(error).retry else type(error)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read of one table."""

    log: str
    table: str
    columns: tuple[str, ...] | None
    starting: str | None
    ending: str
    starting_time_us: int | None
    ending_time_us: int | None
    changes_max: int | None
    bytes_max: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read Spark's options, whose keys are in any case; raises ConfigError."""
        given = _named(options)
        for needed in ("log", "table"):
            if not given.get(needed):
                raise ConfigError(f"the tailrace format needs the option {needed}")
        for bound in ("starting", "ending"):
            if f"{bound}Offset" in given and f"{bound}Timestamp" in given:
                raise ConfigError(f"{bound}Offset and {bound}Timestamp exclude each other")
        columns = given.get("columns")
        return cls(
            log=given["log"],
            table=given["table"],
            columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
            starting=given.get("startingOffset"),
            ending=given.get("endingOffset", "latest"),
            starting_time_us=_time_us(given, "startingTimestamp"),
            ending_time_us=_time_us(given, "endingTimestamp"),
            changes_max=_count(given, "maxChangesPerTrigger"),
            bytes_max=_count(given, "maxBytesPerTrigger"),
        )

    def reader(self) -> Reader:
        """A new view of the log."""
        return Reader(open_store(self.log))

    @property
    def limits(self) -> Limits:
        """How much one micro-batch may hold."""
        return Limits(self.changes_max or NO_LIMIT, self.bytes_max or BATCH_BYTES)

    @property
    def is_bounded(self) -> bool:
        """Whether an end is set."""
        return self.ending != "latest" or self.ending_time_us is not None

    @property
    def is_time_span(self) -> bool:
        """Whether both ends are times, in their order."""
        first, last = self.starting_time_us, self.ending_time_us
        return first is not None and last is not None and first <= last

    def start(self, reader: Reader) -> Place:
        """The place after which to read: a position, or the table's base.

        Nothing said means the base if there is one, unless an end is set.
        """
        if self.starting_time_us is not None:
            return Place(offset_before_time(reader, self.starting_time_us))
        if self.starting == BASE or (self.starting is None and not self.is_bounded):
            upto = self.end(reader) if self.is_bounded else None
            if newest_base(reader.store, self.table, upto=upto) is not None:
                return BEFORE_BASE
            if self.starting == BASE:
                raise ConfigError(
                    f"{self.table} has no base{f' up to {upto}' if upto is not None else ''}",
                    hint="`tailrace snapshot` makes one; startingOffset=earliest does without",
                )
        starting = "earliest" if self.starting is None else self.starting
        return Place(_position(reader, starting, "startingOffset"))

    def end(self, reader: Reader) -> Offset:
        """The position up to which to read."""
        if self.ending_time_us is not None:
            return offset_at_time(reader, self.ending_time_us)
        return _position(reader, self.ending, "endingOffset")


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options under the names by which they are documented."""
    names = {name.lower(): name for name in _KNOWN}
    unknown = sorted(key for key in options if key.lower() not in names)
    if unknown:
        raise ConfigError(
            f"the tailrace format has no option {unknown[0]}", hint=f"options: {', '.join(_KNOWN)}"
        )
    return {names[key.lower()]: value for key, value in options.items()}


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
            f"{option} {text!r} is not a position",
            hint="earliest, latest, 0/16B3748, 0/16B3748:3",
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
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{option} {text!r} is not a positive number")
    return int(text)
