"""Which jars a session was started with."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


def has_class(session: SparkSession, name: str) -> bool:
    """Whether the driver finds this class of Java."""
    # A session over Spark Connect has no Java of its own.
    java = getattr(session, "_jvm", None)
    if java is None:
        return False
    try:
        java.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JError:
        return False
    return True
