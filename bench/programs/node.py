"""A node that captures, and delivers one stream to a webhook, as soon as it may do either.

Leadership, capture, the log, delivery and the sink are the real ones; batches are read by the code
of Spark's executors in this process, without Spark. Says `standby` when another node does both.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from bench.programs.talk import say, stop_with_parent, task
from tailrace.capture import Daemon, Duties, Metrics, Settings
from tailrace.log.epochs import take_epoch
from tailrace.postgres.lock_session import LockSession
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.sinks import open_sink
from tailrace.sinks.memory import MemorySink
from tailrace.storage import Store, open_store
from tailrace.streams import Stream
from tailrace.streams.control import Control
from tests.streams.by_hand import Run

_POLL_S: Final = 0.005
_HEARTBEAT_S: Final = 1.0


class StandbyNote(logging.Handler):
    """Notes when the daemon says that another one leads."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.noted = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one line of the daemon's log."""
        if record.getMessage().startswith("standing by"):
            self.noted.set()


def main() -> None:
    """Until killed, or told to stop."""
    wanted = task()
    logging.basicConfig(level=logging.INFO)
    standby = StandbyNote()
    logging.getLogger("tailrace.capture").addHandler(standby)
    stop = stop_with_parent()
    store, names = open_store(wanted["log"]), SourceNames.of(wanted["source"])
    duties = Duties(wanted["dsn"], names, Selection(["public.*"]), _HEARTBEAT_S)
    daemon = Daemon(Settings(duties), store, metrics=Metrics("bench"), stop=stop)
    threading.Thread(target=daemon.run, name="capture", daemon=True).start()
    control = Control(
        lambda: LockSession(wanted["dsn"]),
        store,
        source=names.slot,
        declared=[],
        resolve=lambda kept: Stream(kept.name, kept.definition.tables, lambda _: MemorySink()),
    )
    control.start(list)
    while not control.leads(wanted["stream"]):
        if standby.noted.is_set():
            standby.noted.clear()
            say("standby")
        if stop.wait(_POLL_S):
            return
    _deliver(store, wanted["stream"], wanted["url"], stop)


def _deliver(store: Store, stream: str, url: str, stop: threading.Event) -> None:
    fence = take_epoch(store, stream, node="node")
    sink = open_sink({"type": "webhook", "url": url}, store=store, stream=stream)
    run = Run(store, sink, stream=stream, fence=fence)
    say("leads")
    while not stop.is_set():
        if not run.step():
            stop.wait(_POLL_S)


if __name__ == "__main__":
    main()
