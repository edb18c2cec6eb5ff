"""Compaction: a table's base and the changes since, folded into a newer base, so that old segments
may go and a new reader can still start.

It works on texts, as Postgres wrote them: a value in the newer base is the same bytes as in the
base or the frame that it comes from.
"""

from tailrace.compaction.compactor import Compactor, Outcome
from tailrace.compaction.running import on_spark

__all__ = ["Compactor", "Outcome", "on_spark"]
