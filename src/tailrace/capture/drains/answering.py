"""The leader's side of requests for bases: a drain's snapshot is lent to those who asked.

The drain is in the log by then, so its position is certain before anybody reads under its snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tailrace.control.requests import close_requests, give, waiting
from tailrace.failpoint import failpoint
from tailrace.model import Lsn
from tailrace.postgres.session import Connection

LEND_S: Final = 10.0
"""How long a snapshot waits to be imported; whoever is later asks again."""

_POLL_S: Final = 0.02


def answer_requests(
    holder: Connection,
    speaker: Connection,
    requests: list[int],
    position: Lsn,
    go_on: Callable[[], None],
) -> None:
    """Answer with the snapshot that `holder` is in, and wait until all have imported it."""
    if not requests:
        return
    row = holder.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    give(speaker, requests, row[0], Lsn(position.wal))
    failpoint("drain.after_answer")
    deadline = time.monotonic() + LEND_S
    while waiting(speaker, requests) and time.monotonic() < deadline:
        go_on()
        time.sleep(_POLL_S)
    close_requests(speaker, requests)
