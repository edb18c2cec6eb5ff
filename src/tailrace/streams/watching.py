"""Looks at the log beside control, which must not wait for it: the server ends a session, and with
it the locks of all streams, whose thread is away for too long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from tailrace.streams.observing import Delivering, Observer, position_of

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0


class Watch:
    """A thread of its own. A daemon: a store that hangs must not hold up the end of the process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._places: Callable[[], Sequence[Delivering]] = list
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-watch", daemon=True)

    def start(self, places: Callable[[], Sequence[Delivering]]) -> None:
        """Begin, with what is delivered here."""
        self._places = places
        self._thread.start()

    def stop(self) -> None:
        """No further look; one that is under way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            delivered = [place for place in self._places() if place.wish.runnable is not None]
            try:
                self._observer.look({each.wish.name: position_of(each) for each in delivered})
            except Exception:
                # Whatever it is: nobody would look any more, and nobody would know.
                logger.warning("the log cannot be looked at", exc_info=True)
            self._stop.wait(LOOK_S)
