"""The thread that writes, so that the one that talks to Postgres never waits for a disk.

One job at a time. When it is done, or has failed, a byte on a pipe wakes the talking thread.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress

from tailrace.capture.actions import DiscardParts, Job, Seal, StorePart, StoreProgress
from tailrace.capture.buffers.translating import TranslatingWriter
from tailrace.errors import SegmentCorrupt, SourceError
from tailrace.log import Header


class WritingThread:
    """Runs the jobs of one connection on its writer."""

    def __init__(self, writer: TranslatingWriter) -> None:
        self._writer = writer
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Header | BaseException | None] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="tailrace-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Hand over the next job; only when the last one's result has been taken."""
        self._jobs.put(job)

    def fileno(self) -> int:
        """Readable when a result waits."""
        return self._wake_read

    def take_result(self) -> Header | None:
        """The header of a sealed segment, or None for any other job; raises what the job raised."""
        os.read(self._wake_read, 1)
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self, timeout_s: float) -> threading.Thread | None:
        """End the thread. One that hangs in a dead store is left behind, and returned: whatever it
        still puts is either the log's next segment or refused by its name.
        """
        self._jobs.put(None)
        os.close(self._wake_read)
        self._thread.join(timeout_s)
        return self._thread if self._thread.is_alive() else None

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    self._results.put(self._do(job))
                except BaseException as error:
                    self._results.put(error)
                # After `close` nobody listens any more.
                with suppress(BrokenPipeError):
                    os.write(self._wake_write, b"x")
        finally:
            os.close(self._wake_write)

    def _do(self, job: Job) -> Header | None:
        try:
            match job:
                case Seal(frames):
                    return self._writer.append(frames)
                case StorePart(frames):
                    self._writer.put_part(frames)
                case DiscardParts():
                    self._writer.discard_parts()
                case StoreProgress(position):
                    self._writer.put_progress(position)
        except SegmentCorrupt as error:
            # The log was sound when its tip was read: these frames are what came over the wire.
            raise SourceError(f"postgres sent what cannot be read: {error}", retry=True) from error
        return None
