"""The real daemon on a slot with a backlog, until a number of changes is durable in its log.

Says `streaming` when START_REPLICATION has been answered, and `done` with the moment at which the
last segment became durable; then goes on until told to stop. With `keep_segments` every segment is
told at the end, with the moment at which it became durable.
"""

from __future__ import annotations

import logging
import threading
import time
from base64 import b64encode
from collections.abc import Iterable

from bench.programs.talk import peak_memory_mb, say, stop_with_parent, task
from tailrace.capture import Daemon, Duties, Metrics, Settings
from tailrace.log import layout
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.storage import Store, open_store
from tailrace.storage.store import Data, Entries

_POLL_S = 0.02
_HEARTBEAT_S = 1.0


class TimedStore:
    """A store that notes when each segment became durable."""

    def __init__(self, store: Store, *, keep_segments: bool) -> None:
        self._store = store
        self._keep_segments = keep_segments
        self.last_at = 0.0
        self.kept: list[tuple[float, str, bytes]] = []

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self._store.url

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        """See `Store.put_new`."""
        self._store.put_new(key, data, is_bulk=is_bulk)
        if key.startswith(layout.SEGMENTS):
            self.last_at = time.monotonic()
            if self._keep_segments:
                self.kept.append((self.last_at, key, bytes(data)))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        return self._store.get(key, start=start, length=length)

    def list(self, prefix: str, *, after: str = "") -> Entries:
        """See `Store.list`."""
        return self._store.list(prefix, after=after)

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""
        self._store.sync(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`."""
        self._store.delete(keys)


class StreamingNote(logging.Handler):
    """Tells when the daemon says that it streams."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.at = 0.0
        self.cpu_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one line of the daemon's log."""
        if not self.at and record.getMessage().startswith("streaming "):
            self.at, self.cpu_s = time.monotonic(), time.process_time()
            say("streaming", at=self.at)


def main() -> None:
    """Run until told to stop."""
    wanted = task()
    logging.basicConfig(level=logging.INFO)
    streaming = StreamingNote()
    logging.getLogger("tailrace.capture").addHandler(streaming)
    stop = stop_with_parent()
    store = TimedStore(open_store(wanted["log"]), keep_segments=wanted.get("keep_segments", False))
    metrics = Metrics("bench")
    names = SourceNames.of(wanted["source"])
    duties = Duties(wanted["dsn"], names, Selection(wanted["tables"]), _HEARTBEAT_S)
    daemon = Daemon(Settings(duties), store, metrics=metrics, stop=stop)
    if wanted["changes"] is not None:
        watched = (metrics, wanted["changes"], store, streaming, stop)
        threading.Thread(target=_watch, args=watched, daemon=True).start()
    daemon.run()
    for at, key, data in store.kept:
        say("segment", at=at, key=key, data=b64encode(data).decode())
    say("stopped")


def _watch(
    metrics: Metrics,
    changes: int,
    store: TimedStore,
    streaming: StreamingNote,
    stop: threading.Event,
) -> None:
    while not streaming.at or _changes(metrics) < changes:
        if stop.wait(_POLL_S):
            return
    say(
        "done",
        at=store.last_at,
        seconds=store.last_at - streaming.at,
        cpu_s=time.process_time() - streaming.cpu_s,
        memory_mb=peak_memory_mb(),
        segments=metrics.registry.get_sample_value(
            "tailrace_capture_segments_total", {"source": "bench"}
        ),
    )


def _changes(metrics: Metrics) -> float:
    labels = {"source": "bench"}
    return metrics.registry.get_sample_value("tailrace_capture_changes_total", labels) or 0.0


if __name__ == "__main__":
    main()
