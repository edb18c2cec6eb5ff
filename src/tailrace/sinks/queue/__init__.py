"""Queues as sinks: messages in order for each row, retries, dead letters, redrive."""

from tailrace.sinks.queue.opening import SENDERS, open_queue
from tailrace.sinks.queue.sink import QueueSink

__all__ = ["SENDERS", "QueueSink", "open_queue"]
