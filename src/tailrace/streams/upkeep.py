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

_ERRORS: Final = (TailraceError, PySparkException)
"""What may go wrong with one table alone."""


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
            except (*_ERRORS, Py4JError, ConnectionError) as error:
                self._say_once("", str(error).partition("\n")[0])
            self._stop.wait(self._turn_s)

    def turn(self, now_s: float) -> None:
        """Fold what is due, table by table; one that fails does not hold up the others."""
        for table in sorted(self._compactor.due(interval_s=self._interval_s, now_s=now_s)):
            if self._stop.is_set():
                return
            try:
                reasons = [outcome.reason for outcome in self._compactor.compact({table})]
            except _ERRORS as error:
                reasons = [str(error).partition("\n")[0]]
            self._say_once(table, "; ".join(filter(None, reasons)))

    def _say_once(self, table: str, reason: str) -> None:
        if reason and reason != self._said.get(table) and not self._stop.is_set():
            logger.warning("base not folded table=%s reason=%s", table or "any", reason)
        self._said[table] = reason
