"""Where changes are delivered to: one module or package for each sink, opened by the name of its
type.
"""

from tailrace.sinks.registry import held_by, open_sink
from tailrace.sinks.sink import Batch, Holds, Load, Sink, Stoppable

__all__ = ["Batch", "Holds", "Load", "Sink", "Stoppable", "held_by", "open_sink"]
