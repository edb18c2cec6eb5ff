"""Runs capture as a process of its own."""

from __future__ import annotations

import json
import logging
import signal
import threading
from typing import Any

from tailrace.capture import Daemon, Limits, Metrics, housekeeping
from tailrace.capture.drains import leader as drain_leader
from tailrace.capture.modes import CaptureMode, HybridSettings, TableRules
from tailrace.log.merge import MergePolicy
from tailrace.storage import open_store
from tests.capture.running import settings


def _hybrid(value: dict[str, Any]) -> HybridSettings:
    of_some = [(pattern, _rules(rules)) for pattern, rules in value["of_some"]]
    return HybridSettings(_rules(value["rules"]), of_some, value["poll_interval_s"])


def _rules(value: dict[str, Any]) -> TableRules:
    return TableRules(**{**value, "mode": CaptureMode(value["mode"])})


def main(argument: str) -> None:
    """Capture until SIGTERM."""
    told = json.loads(argument)
    logging.basicConfig(level=logging.INFO, format="%(process)d %(name)s %(message)s")
    # All that happens now and then happens often, so that it can be killed in the middle.
    often = {
        housekeeping: ("TABLES_INTERVAL_S", "LOG_INTERVAL_S", "RETENTION_INTERVAL_S"),
        drain_leader: ("DETECT_INTERVAL_S",),
    }
    for module, intervals in often.items():
        for interval in intervals:
            setattr(module, interval, 0.2)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    daemon = Daemon(
        settings(
            told["dsn"],
            *told["tables"],
            limits=Limits(**told["limits"]),
            sender_timeout_s=told["sender_timeout_s"],
            merge=MergePolicy(**told["merge"]),
            hybrid=_hybrid(told["hybrid"]),
        ),
        open_store(told["log_url"]),
        metrics=Metrics("main"),
        stop=stop,
    )
    daemon.run()
