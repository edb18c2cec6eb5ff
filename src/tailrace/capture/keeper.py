"""Keeps the leader's session alive while the leader is busy with the log and the catalog.

Between winning the lock and START_REPLICATION the session is idle, and the server ends an idle one,
so that a leader that stopped there does not keep the lock. Reading a log's tip from a distant
bucket, or taking up hundreds of tables, may take longer than that. So a thread pings, but only for
a while after each sign of life: a leader that hangs in a dead store must lose the lock too.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Protocol, Self

from tailrace.errors import TailraceError

PATIENCE_S: Final = 120.0
"""How long the session is kept without a sign of life."""


class Session(Protocol):
    """One that holds the lock."""

    def ping(self) -> None:
        """Keep it from being ended for idleness; raises TailraceError if it is lost."""


class Keeper:
    """Has the connection to itself between enter and exit; the leader must not use it there."""

    def __init__(
        self,
        connection: Session,
        *,
        interval_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._connection = connection
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._renewed_at = time.monotonic()
        self._ended = threading.Event()
        self._failure: TailraceError | None = None
        self._thread = threading.Thread(target=self._run, name="tailrace-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self.renew()

    def renew(self) -> None:
        """Give a sign of life; raises SourceError if the session, and so the lock, is lost."""
        if self._failure is not None:
            raise self._failure
        self._renewed_at = time.monotonic()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            if time.monotonic() < self._renewed_at + self._patience_s:
                try:
                    self._connection.ping()
                except TailraceError as error:
                    self._failure = error
                    return
