"""The log as a list: what the core's jobs amount to once they are done."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.capture.actions import DiscardParts, Job, Seal, StorePart, StoreProgress
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import parse_begin, parse_commit
from tests.capture.wal import START


@dataclass(frozen=True, slots=True)
class Stored:
    """A transaction of the log."""

    xid: int
    end_lsn: int
    frames: tuple[bytes, ...]


@dataclass(slots=True)
class ModelLog:
    """Transactions and idle positions that survive a crash; parts that do not."""

    transactions: list[Stored] = field(default_factory=list)
    positions: list[int] = field(default_factory=lambda: [int(START)])
    _parts: list[bytes] = field(default_factory=list)

    @property
    def tip(self) -> Lsn:
        """Where a new connection starts."""
        return Lsn(max([*self.positions, *(each.end_lsn for each in self.transactions)]))

    @property
    def acknowledgeable(self) -> set[int]:
        """The only positions that Postgres may ever be told."""
        return {*self.positions, *(each.end_lsn for each in self.transactions)}

    def forget_parts(self) -> None:
        """The writer is gone, and with it the parts that nothing names."""
        self._parts.clear()

    def store(self, job: Job) -> None:
        """Do a job."""
        match job:
            case Seal(frames):
                self._append(self._parts + _listed(frames))
                self._parts.clear()
            case StorePart(frames):
                self._parts += _listed(frames)
            case DiscardParts():
                self._parts.clear()
            case StoreProgress(position):
                self.positions.append(int(position))

    def _append(self, frames: list[bytes]) -> None:
        inside: list[bytes] | None = None
        xid = 0
        for frame in frames:
            if frame[:1] == b"B":
                assert inside is None, "a transaction begins inside another"
                xid, inside = parse_begin(frame).xid, []
            elif frame[:1] == b"C":
                assert inside is not None, "a transaction ends that has not begun"
                end = parse_commit(frame).end_lsn
                assert not self.transactions or end > self.transactions[-1].end_lsn
                self.transactions.append(Stored(xid, end, tuple(inside)))
                inside = None
            else:
                assert inside is not None, "a frame stands outside every transaction"
                inside.append(frame)
        assert inside is None, "a segment ends inside a transaction"


def _listed(frames: Frames) -> list[bytes]:
    return [frames.frame(number) for number in range(len(frames))]
