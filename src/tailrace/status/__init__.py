"""How a source, its log and its streams are doing, at a glance."""

from tailrace.status.report import Report, SourceReport, StreamReport, gather

__all__ = ["Report", "SourceReport", "StreamReport", "gather"]
