"""A stream's own record of where it is, beside the log.

    streams/<stream>/batches/<n>.json     what batch n delivers, put before the sink sees it
    streams/<stream>/done/<n>             batch n is at the sink

A batch's number is put only if absent: the record is the fence between two pipelines, and the same
number always means the same changes. It wins over Spark's checkpoint, which is neither synced to
disk nor a fence. After a crash the newest batch is delivered again, whole; the sink knows its
number.

Numbers never come back, so a sink can tell every batch from those that it has.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tailrace.errors import LogFenced
from tailrace.log import Reader, layout
from tailrace.log.epochs import Fence
from tailrace.log.retention import put_reader_position, reader_positions, set_reader_position
from tailrace.model import Lsn, Offset
from tailrace.sinks.sink import stream_of
from tailrace.storage import ObjectExists, ObjectMissing, Store
from tailrace.streams.batch_record import BatchRecord, sequence_of
from tailrace.streams.taken import TakenTables, slowest

_KEEP: Final = 2
_REMOVED: Final = "removed"


class StreamRecord:
    """The record of one stream in one store."""

    def __init__(
        self, store: Store, stream: str, fence: Fence | None = None, *, reader: str = ""
    ) -> None:
        """`fence` is needed by who delivers the stream while others stand by. `reader` is what
        retention knows it by, if that is not the stream's name.
        """
        self._fence = fence or Fence(store, stream, 0)
        self._store = store
        self._stream = stream
        self._reader = reader or stream
        self._batches = f"{layout.STREAMS}{stream}/batches/"
        self._done = f"{layout.STREAMS}{stream}/done/"
        self._repairs = f"{layout.STREAMS}{stream}/repairs/"

    @property
    def store(self) -> Store:
        """Where the record is, beside the log."""
        return self._store

    def newest(self) -> BatchRecord | None:
        """The newest batch whose range is fixed, durably; None if the stream has not begun."""
        # A run that was killed may have left a record that a power cut would still take away; the
        # sink must not be ahead of it.
        self._store.sync(self._batches)
        while entries := self._store.list(self._batches):
            key = entries[-1].key
            # One that vanishes while being read has been outdone: look again.
            with suppress(ObjectMissing):
                return BatchRecord.from_json(self._store.get(key), key=key)
        return None

    def begin(self, at: Offset, *, writer: str) -> BatchRecord:
        """Fix where the stream begins, and let retention know; whoever was faster has decided."""
        put_reader_position(self._store, self._reader, _needed_from(at))
        with suppress(ObjectExists):
            self._put(BatchRecord.start(0, at, writer))
        newest = self.newest()
        assert newest is not None, f"stream {self._stream} has begun and has no record"
        return newest

    def other_streams(self) -> list[str]:
        """The other streams that there are: whatever was removed is none."""
        return sorted({stream_of(name) for name in reader_positions(self._store)} - {self._stream})

    def is_done(self, batch: BatchRecord) -> bool:
        """Whether the sink has this batch."""
        wanted = self._done_key(batch.sequence)
        entries = self._store.list(self._done)
        return batch.is_start or any(entry.key == wanted for entry in entries)

    def delivered_tables(self) -> TakenTables:
        """The tables as the sink has them for certain: without the batch that is under way, which
        is delivered anyway, or becomes dead letters in a moment.
        """
        newest = self.newest()
        if newest is None:
            return ()
        return newest.outcome if self.is_done(newest) else newest.tables

    def is_taken(self, sequence: int) -> bool:
        """Whether a batch of this number, or of a later one, is fixed."""
        newest = self.newest()
        return newest is not None and newest.sequence >= sequence

    def fix(self, batch: BatchRecord) -> None:
        """Make a batch's range durable; raises LogFenced if another run has taken its number."""
        key = self._batch_key(batch.sequence)
        try:
            self._put(batch)
        except ObjectExists as error:
            # A put that timed out may have arrived: then the object is ours.
            with suppress(ObjectMissing):
                if BatchRecord.from_json(self._store.get(key), key=key) == batch:
                    return
            raise self._fenced() from error
        if self._store.list(self._batches, after=key):
            # The number was free only because it is long past.
            self._store.delete([key])
            raise self._fenced()
        # Whoever has taken over before this put may not see it; after it, it does.
        self._fence.check()

    def finish(self, batch: BatchRecord) -> None:
        """Note that the sink has the batch, and let retention go on; raises LogFenced."""
        self._fence.check()
        with suppress(ObjectExists):
            self._store.put_new(self._done_key(batch.sequence), b"")
        needed = _needed_from(slowest(batch.outcome, batch.upto))
        if batch.load is None:
            put_reader_position(self._store, self._reader, needed)
        else:
            # A table whose base is older than what the stream had reached is caught up now.
            set_reader_position(self._store, self._reader, needed)
        last = batch.sequence - _KEEP
        self._store.delete(
            entry.key
            for level in (self._batches, self._done, self._repairs)
            for entry in self._store.list(level)
            if sequence_of(entry.key) <= last
        )

    def start(self, batch: BatchRecord) -> None:
        """Fix where a run of some tables begins, and let retention know; raises LogFenced."""
        assert batch.is_start, "a run does not begin with changes"
        self.need_from(slowest(batch.outcome, batch.upto))
        self.fix(batch)

    def release(self) -> None:
        """Retention does not wait for it any more."""
        prefix = layout.reader_prefix(self._reader)
        self._store.delete(entry.key for entry in self._store.list(prefix))

    def need_from(self, position: Offset) -> None:
        """Let retention know that the stream needs what follows `position`, and only that."""
        set_reader_position(self._store, self._reader, _needed_from(position))

    def forget(self) -> None:
        """Reset the stream: it takes up every table anew. Its sink is left alone until then."""
        self._start_over("reset")

    def remove(self) -> None:
        """End the stream: whoever delivers it is fenced, and retention does not wait for it any
        more. Its sink is left alone. Its numbers are kept, because the sink knows them: should a
        stream of this name begin again, it goes on counting, and takes up every table anew.
        """
        self._start_over(_REMOVED)
        self.release()

    def revive(self) -> None:
        """Reset the stream if it was removed: what it would go on with may be gone."""
        newest = self.newest()
        if newest is not None and newest.writer == _REMOVED:
            self.forget()

    def _start_over(self, writer: str) -> None:
        while entries := self._store.list(self._batches):
            at = Offset.whole(Reader(self._store).begin())
            sequence = sequence_of(entries[-1].key) + 1
            self.need_from(at)
            with suppress(ObjectExists):
                self._put(BatchRecord.start(sequence, at, writer))
                return

    def _put(self, batch: BatchRecord) -> None:
        self._store.put_new(self._batch_key(batch.sequence), batch.to_json())

    def _batch_key(self, sequence: int) -> str:
        return f"{self._batches}{sequence:016d}.json"

    def _done_key(self, sequence: int) -> str:
        return f"{self._done}{sequence:016d}"

    def _fenced(self) -> LogFenced:
        return LogFenced(
            f"another pipeline delivers stream {self._stream}, or it was reset",
            hint="only one pipeline may deliver a stream: stop one of the two",
        )


def _needed_from(position: Offset) -> Lsn:
    """The highest position such that nothing at or before it is needed again."""
    return position.commit_lsn if position.is_whole else Lsn(position.commit_lsn - 1)
