"""Runs capture as a process of its own: `python -m tests.capture.process JSON`."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading

from tailrace.capture import Daemon, Limits, Metrics, housekeeping
from tailrace.log.merge import MergePolicy
from tailrace.storage import open_store
from tests.capture.running import settings


def main(argument: str) -> None:
    """Capture until SIGTERM."""
    told = json.loads(argument)
    logging.basicConfig(level=logging.INFO, format="%(process)d %(name)s %(message)s")
    # All that happens now and then happens often, so that it can be killed in the middle.
    for interval in ("TABLES_INTERVAL_S", "LOG_INTERVAL_S", "RETENTION_INTERVAL_S"):
        setattr(housekeeping, interval, 0.2)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    daemon = Daemon(
        settings(
            told["dsn"],
            *told["tables"],
            limits=Limits(**told["limits"]),
            sender_timeout_s=told["sender_timeout_s"],
            merge=MergePolicy(**told["merge"]),
        ),
        open_store(told["log_url"]),
        metrics=Metrics("main"),
        stop=stop,
    )
    daemon.run()


if __name__ == "__main__":
    main(sys.argv[1])
