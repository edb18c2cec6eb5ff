"""Change files in Parquet, with an index of those that are complete."""

from tailrace.sinks.parquet.options import ParquetOptions, Partition
from tailrace.sinks.parquet.sink import ParquetSink

__all__ = ["ParquetOptions", "ParquetSink", "Partition"]
