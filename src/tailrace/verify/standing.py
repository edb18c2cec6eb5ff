"""Where a stream stands, by its own record, and the wait until it is near a position."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogError
from tailrace.log import Reader
from tailrace.log.plan import pieces
from tailrace.model import Lsn, Offset, Relation
from tailrace.storage import Store
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.record import StreamRecord
from tailrace.streams.taken import Taken, TakenTables

POLL_S: Final = 0.2
LOG_S: Final = 60.0
"""How long the log is waited for: capture brings it to any position within seconds."""

STALLED_S: Final = 10.0
"""A stream that has not moved for so long is not waited for: its pipeline may not run."""

STREAM_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The last batch that the sink has, and the tables as they are by it.

    `unfinished` is the batch behind it, if one is fixed.
    """

    sequence: int
    tables: TakenTables
    selection: str
    unfinished: BatchRecord | None = None


def read_standing(store: Store, stream: str) -> Standing:
    """As of now; raises LogError if the stream has never run."""
    record = StreamRecord(store, stream)
    newest = record.newest()
    if newest is None:
        raise LogError(
            f"stream {stream} has not delivered anything yet", hint="start `tailrace run` first"
        )
    if record.is_done(newest):
        return Standing(newest.sequence, newest.outcome, newest.selection)
    return Standing(newest.sequence - 1, newest.tables, newest.selection, newest)


def wait_for_log(reader: Reader, at: Lsn, on_wait: Callable[[], None]) -> None:
    """Until the log has everything up to `at`; raises LogError."""
    deadline = time.monotonic() + LOG_S
    while reader.tip().position < at:
        if time.monotonic() > deadline:
            raise LogError(
                f"the log has not come to {at} in {LOG_S:.0f} s",
                hint="is capture running? `tailrace status` tells",
                retry=True,
            )
        on_wait()
        time.sleep(POLL_S)


def wait_for_stream(
    store: Store, reader: Reader, stream: str, at: Offset, on_wait: Callable[[], None]
) -> None:
    """Until the stream has delivered what the log has up to `at`, or does not move any more."""
    began = moved = time.monotonic()
    standing = read_standing(store, stream)
    while any(is_behind(reader, table, at) for table in standing.tables):
        now = time.monotonic()
        if now > moved + STALLED_S or now > began + STREAM_S:
            return
        on_wait()
        time.sleep(POLL_S)
        before, standing = standing, read_standing(store, stream)
        if standing.tables != before.tables:
            moved = time.monotonic()


def is_behind(reader: Reader, table: Taken, at: Offset) -> bool:
    """Whether the log has changes of the table up to `at` that are not delivered."""

    def wanted(relation: Relation) -> bool:
        return relation.oid == table.oid

    return table.position < at and any(pieces(reader, table.position, at, wanted=wanted))
