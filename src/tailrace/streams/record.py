"""A stream's own record of where it is, beside the log.

    streams/<stream>/start.json           where it began: resolved once, then fixed
    streams/<stream>/batches/<n>.json     the range of batch n, put before the sink sees it
    streams/<stream>/done/<n>             batch n is at the sink

A batch's number is put only if absent: the record is the fence between two pipelines, and the same
number always means the same range. It wins over Spark's checkpoint, which is neither synced to disk
nor a fence. After a crash the newest batch is delivered again, whole; the sink knows its number.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tailrace.errors import LogFenced, SegmentCorrupt
from tailrace.log import layout
from tailrace.log.retention import drop_reader, put_reader_position
from tailrace.model import Lsn, Offset
from tailrace.storage import ObjectExists, ObjectMissing, Store

_KEEP: Final = 2


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Batch `sequence` delivers `(after, upto]`; `known` had rows delivered before it."""

    sequence: int
    after: Offset
    upto: Offset
    writer: str
    known: frozenset[str]
    tables: frozenset[str]

    def to_json(self) -> bytes:
        """As stored."""
        value = {
            "after": self.after.to_dict(),
            "upto": self.upto.to_dict(),
            "writer": self.writer,
            "known": sorted(self.known),
            "tables": sorted(self.tables),
        }
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> BatchRecord:
        """Read what `to_json` wrote; raises SegmentCorrupt."""
        try:
            value = json.loads(data)
            return cls(
                sequence=int(key.rsplit("/", 1)[-1].split(".")[0]),
                after=Offset.from_dict(value["after"]),
                upto=Offset.from_dict(value["upto"]),
                writer=value["writer"],
                known=frozenset(value["known"]),
                tables=frozenset(value["tables"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SegmentCorrupt(
                f"{key} cannot be read", hint="restore it from a backup, or reset the stream"
            ) from error


class StreamRecord:
    """The record of one stream in one store."""

    def __init__(self, store: Store, stream: str) -> None:
        self._store = store
        self._stream = stream
        self._prefix = f"{layout.STREAMS}{stream}/"

    def start(self, default: Offset) -> Offset:
        """Where the stream began; `default` if it begins now."""
        key = f"{self._prefix}start.json"
        with suppress(ObjectExists):
            self._store.put_new(key, default.to_json().encode())
        start = Offset.from_json(self._store.get(key).decode())
        put_reader_position(self._store, self._stream, _needed_from(start))
        return start

    def newest(self) -> BatchRecord | None:
        """The newest batch whose range is fixed."""
        while entries := self._store.list(f"{self._prefix}batches/"):
            key = entries[-1].key
            with suppress(ObjectMissing):
                return BatchRecord.from_json(self._store.get(key), key=key)
        return None

    def is_done(self, sequence: int) -> bool:
        """Whether the sink has this batch."""
        entries = self._store.list(f"{self._prefix}done/")
        return any(entry.key == self._done_key(sequence) for entry in entries)

    def fix(self, batch: BatchRecord) -> None:
        """Make a batch's range durable, or find that it is; raises LogFenced if it is another."""
        key = self._batch_key(batch.sequence)
        try:
            self._store.put_new(key, batch.to_json())
        except ObjectExists as error:
            found = BatchRecord.from_json(self._store.get(key), key=key)
            if (found.after, found.upto) != (batch.after, batch.upto):
                raise LogFenced(
                    f"another pipeline delivers stream {self._stream}",
                    hint="stop one of the two; they must not share a log",
                ) from error

    def finish(self, batch: BatchRecord) -> None:
        """Note that the sink has the batch, and let retention go on."""
        with suppress(ObjectExists):
            self._store.put_new(self._done_key(batch.sequence), b"")
        put_reader_position(self._store, self._stream, _needed_from(batch.upto))
        last = batch.sequence - _KEEP
        old = [self._batch_key(last), self._done_key(last)]
        self._store.delete(old)

    def forget(self) -> None:
        """Reset the stream: it starts over at the beginning of the log."""
        self._store.delete([entry.key for entry in self._store.list(self._prefix)])
        drop_reader(self._store, self._stream)

    def _batch_key(self, sequence: int) -> str:
        return f"{self._prefix}batches/{sequence:016d}.json"

    def _done_key(self, sequence: int) -> str:
        return f"{self._prefix}done/{sequence:016d}"


def _needed_from(position: Offset) -> Lsn:
    """The highest position such that nothing at or before it is needed again."""
    return position.commit_lsn if position.is_whole else Lsn(position.commit_lsn - 1)
