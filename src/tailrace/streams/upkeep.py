"""What a pipeline does beside its streams: it folds old bases, in a thread of its own.

Streams never wait for it. What fails is told once and tried again at the next turn.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.compaction import Compactor
from tailrace.errors import TailraceError

logger = logging.getLogger(__name__)

TURN_S: Final = 60.0

_KNOWN: Final = (TailraceError, PySparkException, Py4JError, ConnectionError)
"""What may go wrong without a bug of ours."""


class Upkeep:
    """One pipeline's thread."""

    def __init__(self, compactor: Compactor, *, interval_s: float, turn_s: float = TURN_S) -> None:
        self._compactor = compactor
        self._interval_s = interval_s
        self._turn_s = turn_s
        self._said: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No further turn; one that is under way ends with Spark, and is made again."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.turn(time.time())
            except Exception as error:
                self._failed("", error)
            self._stop.wait(self._turn_s)

    def turn(self, now_s: float) -> None:
        """Fold what is due, table by table; one that fails does not hold up the others."""
        for table in sorted(self._compactor.due(interval_s=self._interval_s, now_s=now_s)):
            if self._stop.is_set():
                return
            try:
                reasons = [outcome.reason for outcome in self._compactor.compact({table})]
            except (Py4JError, ConnectionError):
                raise
            except Exception as error:
                self._failed(table, error)
            else:
                self._say_once(table, "; ".join(filter(None, reasons)))

    def _failed(self, table: str, error: Exception) -> None:
        """Whatever it is: bases that are not folded keep the log, and it grows."""
        trace = None if isinstance(error, _KNOWN) else error
        self._say_once(table, str(error).partition("\n")[0], trace)

    def _say_once(self, table: str, reason: str, trace: Exception | None = None) -> None:
        if reason and reason != self._said.get(table) and not self._stop.is_set():
            name = table or "any"
            logger.warning("base not folded table=%s reason=%s", name, reason, exc_info=trace)
        self._said[table] = reason
