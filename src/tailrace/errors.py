"""Every error that Tailrace raises on purpose.

    TailraceError
    ├── ConfigError            the configuration or the command line is wrong
    ├── SourceError            Postgres refuses, is gone, or is not what the log was made from
    │   ├── NotLeading         another process leads by now: what was begun must not go on
    │   ├── NoProspect         a lock is held by one who may hold it for long: not waited for
    │   ├── SlotLost           the replication slot is missing or invalidated
    │   └── SourceGap          changes between the log and the slot cannot be had any more
    ├── SchemaError            a table cannot be taken, or its new shape cannot be delivered
    ├── LogError
    │   ├── SegmentCorrupt     an object of the log is damaged
    │   ├── SegmentMissing     the chain has a hole
    │   ├── OffsetOutOfRange   retention has passed the asked offset
    │   ├── LogFenced          another writer owns the chain
    │   └── StoreError         the store did not take or give an object
    └── SinkError              a sink refuses, or is gone
        └── TargetLost         a target is not what the stream left behind: a load mends it

An error says what happened in one lower-case line and, in `hint`, what to do about it. `retry`
tells whether trying again may help. Errors cross process borders (Spark), so they pickle. Anything
else that is raised is a bug.
"""

from __future__ import annotations


class TailraceError(Exception):
    """The root: a message, a hint, and whether to try again."""

    retry: bool = False

    def __init__(self, message: str, *, hint: str = "", retry: bool | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if retry is not None:
            self.retry = retry

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.hint, self.retry))


def _rebuild(kind: type[TailraceError], message: str, hint: str, retry: bool) -> TailraceError:
    return kind(message, hint=hint, retry=retry)


class ConfigError(TailraceError):
    """The configuration or the command line is wrong."""


class SourceError(TailraceError):
    """Postgres refuses, is gone, or is not what the log was made from."""


class NotLeading(SourceError):
    """Another process leads by now: what was begun must not go on."""

    retry = True


class NoProspect(SourceError):
    """A lock is held by one who may hold it for long, so it was not even waited for."""

    retry = True


class SlotLost(SourceError):
    """The replication slot is missing or invalidated."""


class SourceGap(SourceError):
    """Changes between the log's tip and the slot cannot be had any more."""


class SchemaError(TailraceError):
    """A table cannot be taken, or its new shape cannot be delivered."""


class LogError(TailraceError):
    """The change log cannot be read or written."""


class SegmentCorrupt(LogError):
    """An object of the log is damaged."""


class SegmentMissing(LogError):
    """The chain of segments has a hole."""


class OffsetOutOfRange(LogError):
    """Retention has passed the asked offset."""


class LogFenced(LogError):
    """Another writer owns the chain."""


class StoreError(LogError):
    """The store did not take or give an object."""

    retry = True


class SinkError(TailraceError):
    """A sink refuses, or is gone."""


class TargetLost(SinkError):
    """The target of a table is gone, or not what the stream left behind: a load mends it."""
