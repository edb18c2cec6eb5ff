"""Tailrace turns PostgreSQL into a live, replayable stream of changes on Apache Spark."""

__version__ = "0.1.0"
