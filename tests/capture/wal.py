"""A server's WAL as a test writes it, and the messages that a walsender makes of it.

Positions mean what they mean in Postgres: a transaction's commit record starts at `final_lsn` and
ends at `end_lsn`, which is where the next record may start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tailrace.model import Column, Lsn, PgType, Relation, ReplicaIdentity
from tests.decode import wire

START = Lsn(0x1000)
"""Where the slot of every test begins."""

TABLE = Relation(
    16_400,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", PgType.INT8, -1, True), Column("v", PgType.TEXT, -1, False)),
    ("id",),
)


def data(frame: bytes, lsn: int = 0) -> bytes:
    """A frame in an XLogData message."""
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + frame


def keepalive(position: int, *, wants_reply: bool = False) -> bytes:
    """A keepalive message."""
    return b"k" + struct.pack(">Qq?", position, 0, wants_reply)


def insert(number: int, *, size: int = 8) -> bytes:
    """A row of the table; its number is its key."""
    return wire.insert(TABLE.oid, [str(number), "x" * size])


def message(prefix: str, *, transactional: bool) -> bytes:
    """A logical message."""
    text = prefix.encode() + b"\0"
    return b"M" + struct.pack(">BQ", transactional, 0) + text + struct.pack(">I", 2) + b"hi"


FOREIGN = message("pgq", transactional=True)
OURS = message("tailrace.test", transactional=True)
OUTSIDE = message("pgq", transactional=False)
HEARTBEAT = message("tailrace.heartbeat", transactional=False)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One commit; `frames` are what pgoutput sends between Begin and Commit."""

    xid: int
    start: int
    final_lsn: int
    end_lsn: int
    frames: tuple[bytes, ...]
    ts_us: int = 0

    @property
    def kept(self) -> tuple[bytes, ...]:
        """The frames that belong in the log: all but the messages of others."""
        return tuple(frame for frame in self.frames if frame != FOREIGN)

    @property
    def is_empty(self) -> bool:
        """True if the log needs nothing of it."""
        return not set(self.kept) - {wire.origin()}

    def messages(self) -> Iterator[bytes]:
        """As the walsender sends it."""
        begin = b"B" + struct.pack(">QqI", self.final_lsn, self.ts_us, self.xid)
        yield data(begin, self.final_lsn)
        for frame in self.frames:
            yield data(frame, self.start)
        commit = struct.pack(">BQQq", 0, self.final_lsn, self.end_lsn, self.ts_us)
        yield data(b"C" + commit, self.end_lsn)


@dataclass(slots=True)
class Wal:
    """All that the server has committed, in order."""

    end: int = START
    transactions: list[Transaction] = field(default_factory=list)

    def commit(self, *frames: bytes) -> Transaction:
        """Commit a transaction of published changes; with no frames, of nothing at all."""
        start = self.end
        final_lsn = start + 16 * len(frames)
        made = Transaction(len(self.transactions) + 1, start, final_lsn, final_lsn + 8, frames)
        self.transactions.append(made)
        self.end = made.end_lsn
        return made

    def write_elsewhere(self, size: int = 32) -> int:
        """Write what no publication sends; returns where it ends."""
        self.end += size
        return self.end

    def after(self, position: int) -> list[Transaction]:
        """What a walsender that starts at `position` sends."""
        return [each for each in self.transactions if each.final_lsn >= position]


def all_messages(transactions: Sequence[Transaction]) -> list[bytes]:
    """One transaction after the other."""
    return [message for each in transactions for message in each.messages()]
