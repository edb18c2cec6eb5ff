"""Looks for what operators ask for about dead letters, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tailrace.errors import LogFenced, SinkError, StoreError

logger = logging.getLogger(__name__)


class Ticker:
    """Calls `serve` again and again until it is stopped, or another pipeline has the stream."""

    def __init__(
        self, serve: Callable[[], None], stream: str, *, every_s: float, stop: threading.Event
    ) -> None:
        self._serve = serve
        self._stream = stream
        self._every_s = every_s
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="tailrace-dlq", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for what is under way; `stop` must be set."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._serve()
            except LogFenced as error:
                logger.info("dead letters are left to another error=%s", error)
                return
            except StoreError as error:
                logger.warning("dead letters cannot be reached error=%s", error)
            except SinkError as error:
                logger.info("dead letters are left to the next run error=%s", error)
            except Exception:
                logger.exception("a request about dead letters failed stream=%s", self._stream)
