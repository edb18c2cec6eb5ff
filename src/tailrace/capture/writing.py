"""The thread that writes, so that the one that talks to Postgres never waits for a disk.

One job at a time. When it is done, or has failed, a byte on a pipe wakes the talking thread.
"""

from __future__ import annotations

import os
import queue
import threading

from tailrace.capture.core import DiscardParts, Job, Seal, StorePart, StoreProgress
from tailrace.log import Header, Writer


class WritingThread:
    """Runs the jobs of one connection on its writer."""

    def __init__(self, writer: Writer) -> None:
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

    def close(self, timeout_s: float) -> None:
        """End the thread. One that hangs in a dead store is left behind: it can only be fenced."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._results.put(self._do(job))
            except BaseException as error:
                self._results.put(error)
            os.write(self._wake_write, b"x")

    def _do(self, job: Job) -> Header | None:
        match job:
            case Seal(frames):
                return self._writer.append(frames)
            case StorePart(frames):
                self._writer.put_part(frames)
            case DiscardParts():
                self._writer.discard_parts()
            case StoreProgress(position):
                self._writer.put_progress(position)
        return None
