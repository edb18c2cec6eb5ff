"""The tables of a batch, written side by side: one that fails does not hold up the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from tailrace.decode import TableChanges
from tailrace.errors import TailraceError
from tailrace.sinks.sink import Batch


def write_tables(
    pool: Executor, batch: Batch, write: Callable[[Batch, TableChanges], None]
) -> None:
    """Write every table that has rows; those that can be written are, also if another one fails.

    Raises one of the errors: what needs a person comes before what may pass.
    """
    tables = [changes for changes in batch.tables if changes.rows.num_rows]
    futures = [pool.submit(write, batch, changes) for changes in tables]
    errors = [error for future in futures if (error := future.exception()) is not None]
    errors.sort(key=lambda error: isinstance(error, TailraceError) and error.retry)
    if errors:
        raise errors[0]
