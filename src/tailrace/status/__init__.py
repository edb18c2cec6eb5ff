"""How a source, its log and its streams are doing, at a glance."""

from tailrace.status.left_out import LeftOut
from tailrace.status.report import LogReport, Report, SourceReport, State, StreamReport, gather

__all__ = ["LeftOut", "LogReport", "Report", "SourceReport", "State", "StreamReport", "gather"]
