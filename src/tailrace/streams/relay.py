"""Takes micro-batches over from Spark and delivers each while Spark decodes the next one.

Spark runs one batch after the other, and would decode nothing while a batch is at its sink. So a
batch counts for Spark as done once it is taken over; with the next one Spark has to wait until it
is delivered. One batch is being delivered and one waits, never more. That Spark is ahead does no
harm: where a stream stands is said by its own record, never by Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame


class Relay:
    """One run of a query. Spark calls it for each batch, one at a time; `wait` and `failure` are
    for the thread that watches the query.
    """

    def __init__(self, deliver: Callable[[pa.Table], None]) -> None:
        self._deliver = deliver
        self._delivering: threading.Thread | None = None
        self.failure: BaseException | None = None
        """What ended the run: Spark keeps only the text of an error."""

    def __call__(self, packed: DataFrame, _batch_id: int) -> None:
        """Take a batch over. Spark's number for it counts from its checkpoint, and not."""
        try:
            rows = packed.toArrow()
        except BaseException as error:
            self.wait()
            self.failure = self.failure or error
        else:
            self.wait()
        if self.failure is not None:
            # In few words: Spark looks through the text of an error with a recursive expression,
            # and over that of a task its thread runs out of stack; the query then hangs.
            raise RuntimeError("a batch was not delivered") from None
        # A daemon: a batch that hangs at its sink must not hold up the end of the process.
        self._delivering = threading.Thread(
            target=self._run, args=[rows], name="tailrace-deliver", daemon=True
        )
        self._delivering.start()

    def wait(self) -> None:
        """Until nothing is being delivered."""
        delivering = self._delivering
        if delivering is not None:
            delivering.join()

    def _run(self, rows: pa.Table) -> None:
        try:
            self._deliver(rows)
        except BaseException as error:
            self.failure = error
