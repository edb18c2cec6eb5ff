"""The end of one run of a stream, as its sinks hear of it: before anything that they do is waited
for, else a queue that is down is tried again for as long as its options say.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakSet

from tailrace.sinks import Sink, Stoppable


class Ending:
    """Of a run and its replays. Thread-safe."""

    def __init__(self) -> None:
        self._told: Final = threading.Event()
        self._turn = threading.Lock()
        self._sinks = WeakSet[Stoppable]()

    @property
    def is_told(self) -> bool:
        """Whether the run is to end."""
        return self._told.is_set()

    def hears(self, sink: Sink) -> Sink:
        """The sink, which was just opened; it is told as well if the end came before it."""
        if isinstance(sink, Stoppable):
            with self._turn:
                self._sinks.add(sink)
            if self.is_told:
                sink.stop()
        return sink

    def tell(self) -> None:
        """Every sink that is open, and every one that will be."""
        self._told.set()
        with self._turn:
            sinks = list(self._sinks)
        for sink in sinks:
            sink.stop()
