"""Capture: one slot's stream into the log, acknowledged only when durable, led by one process."""

from tailrace.capture.actions import Limits
from tailrace.capture.core import Core
from tailrace.capture.daemon import Daemon
from tailrace.capture.housekeeping import Duties
from tailrace.capture.leader import Settings
from tailrace.capture.metrics import Metrics

__all__ = ["Core", "Daemon", "Duties", "Limits", "Metrics", "Settings"]
