"""Work of one stream that may take long, or hang, beside the thread that drives all streams."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Aside:
    """Some work in a thread of its own; `error` is what it ended with. A daemon: what hangs must
    not hold up the end of the process.
    """

    def __init__(self, work: Callable[[threading.Event], None], *, name: str) -> None:
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tailrace-{name}", daemon=True)
        self.error: BaseException | None = None
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the work has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until it is over; raises what it ended with."""
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except BaseException as error:
            self.error = error
