"""Streams: tables of the log delivered to sinks, each by a query of its own."""

from tailrace.streams.pipeline import Pipeline
from tailrace.streams.stream import Stream, StreamState

__all__ = ["Pipeline", "Stream", "StreamState"]
