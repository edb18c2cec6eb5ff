"""Delta tables, written by the embedded library or by Delta on Spark."""

from tailrace.sinks.columns import Mode
from tailrace.sinks.delta.embedded import EmbeddedEngine
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.sink import DeltaSink
from tailrace.sinks.place import table_uri

__all__ = ["DeltaOptions", "DeltaSink", "EmbeddedEngine", "Engine", "Mode", "table_uri"]
