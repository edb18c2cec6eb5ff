"""Tailrace on Spark: the session, the data source, and the jobs that read the change log."""

from tailrace.spark.source import TailraceDataSource

__all__ = ["TailraceDataSource"]
