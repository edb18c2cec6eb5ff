"""What tasks have made of pieces of the log lately, for the next stream that wants the same.

Several streams read the same segments at about the same time, and decoding is most of what that
costs. What one task has made is kept in a file beside Spark's own, where the other tasks of the
machine find it until Spark ends. It was made of objects that never change and is named by all that
it was made of, so it is never out of date; it is only forgotten, the oldest first.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import SparkFiles, TaskContext

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_MAX: Final = 64 << 20
"""A batch of a stream takes about ten megabytes, as the rows are compressed."""


class Recent:
    """Rows in files of one directory, of `bytes_max` in all; safe for any number of processes."""

    def __init__(self, directory: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._directory = directory
        self._bytes_max = bytes_max

    def get(
        self, made_of: object, make: Callable[[], Iterable[pa.RecordBatch]]
    ) -> list[pa.RecordBatch]:
        """What is kept of the same, else what `make` makes. Nothing depends on its being kept."""
        name = hashlib.sha256(repr(made_of).encode()).hexdigest()
        path = self._directory / f"{name}.recent"
        if (found := _read(path)) is not None:
            return found
        made = list(make())
        with suppress(OSError):
            self._keep(path, made)
        return made

    def _keep(self, path: Path, rows: list[pa.RecordBatch]) -> None:
        if not rows:
            return
        unfinished = path.with_name(secrets.token_hex(16))
        try:
            _write(unfinished, rows)
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
        self._forget()

    def _forget(self) -> None:
        """What is too much; whoever reads a file that is deleted reads it to its end."""
        found = [
            (entry.stat(), entry.path)
            for entry in os.scandir(self._directory)
            if entry.name.endswith(".recent")
        ]
        found.sort(key=lambda each: each[0].st_mtime_ns)
        size = sum(status.st_size for status, _ in found)
        for status, path in found:
            if size <= self._bytes_max:
                return
            size -= status.st_size
            Path(path).unlink(missing_ok=True)


def shared(
    made_of: object, make: Callable[[], Iterable[pa.RecordBatch]]
) -> Iterable[pa.RecordBatch]:
    """What `make` makes, or what another task of this machine has made of the same; outside of a
    task nothing is shared.
    """
    if TaskContext.get() is None:
        return make()
    return Recent(Path(SparkFiles.getRootDirectory())).get(made_of, make)


def _write(path: Path, rows: list[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows[0].schema) as writer:
        for each in rows:
            writer.write_batch(each)


def _read(path: Path) -> list[pa.RecordBatch] | None:
    """None if it is not there, or not whole."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException):
        return None
