"""Capture: one slot's stream into the log, acknowledged only when durable, led by one process."""

from tailrace.capture.core import Core, Limits
from tailrace.capture.daemon import Daemon, Settings
from tailrace.capture.housekeeping import Duties
from tailrace.capture.metrics import Metrics

__all__ = ["Core", "Daemon", "Duties", "Limits", "Metrics", "Settings"]
