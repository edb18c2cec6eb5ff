"""SIGINT and SIGTERM as one wish to stop, that a command sees when it is ready to.

The first signal sets the wish, the second ends the process at once. A signal handler runs between
any two steps of the main thread and must not take a lock that this thread may hold, so it only
writes to a SimpleQueue, which is made for that; a thread passes the wish on.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = b"\x1b[?25h"
END_S: Final = 30.0
"""How long a process that leaves something behind has to end by itself."""


def end_soon(after_s: float = END_S) -> None:
    """Let the process end, also if some thread hangs: Python would wait for those of a pool."""

    def end() -> None:
        time.sleep(after_s)
        os._exit(1)

    threading.Thread(target=end, name="end-soon", daemon=True).start()


class StopSignals:
    """`with StopSignals() as stop: … stop.event.wait(1) …`; made in the main thread."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._received: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._count = 0
        self._watcher = threading.Thread(target=self._watch, name="stop-signals", daemon=True)

    def __enter__(self) -> Self:
        self._before = [signal.getsignal(number) for number in _SIGNALS]
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)
        self._received.put(None)
        self._watcher.join()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            if os.isatty(1):
                os.write(1, _SHOW_CURSOR)  # a live screen has hidden it
            os._exit(128 + number)
        self._received.put(number)

    def _watch(self) -> None:
        if self._received.get() is not None:
            self.event.set()
