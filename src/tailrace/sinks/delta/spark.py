"""Rows written by Delta on Spark, used when its jar is on the class path: large merges run on the
cluster.

Delta itself skips a write whose version is recorded already, and refuses one that another writer
overtook. On plain S3 it needs a log store that can put if absent (`spark.delta.logStore.*`) if
several drivers may write.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
from deltalake import Schema
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tailrace.sinks.delta.bounds import quote
from tailrace.sinks.delta.engine import Commit
from tailrace.sinks.delta.merge import GONE, Merge
from tailrace.sinks.delta.target import Target

EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SOURCE: Final = "tailrace_source"


def delta_is_available(session: SparkSession) -> bool:
    """Whether the session can run a MERGE: the jar is on the class path and the session is set up
    for it.
    """
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    return EXTENSION in extensions and catalog == _CATALOG and _has_class(session, EXTENSION)


def _has_class(session: SparkSession, name: str) -> bool:
    java = session._jvm
    if java is None:
        return False
    try:
        java.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JError:
        return False
    return True


class SparkEngine:
    """Delta on Spark. Each write has a session of its own, because the record travels in the
    session's settings.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Spark's errors, whether or not it has translated them from Java."""
        return (PySparkException, Py4JError, OSError)

    def append(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        """Add rows."""
        frame = _frame(self._session_for(commit), rows)
        frame.write.format("delta").mode("append").save(target.uri)

    def overwrite(self, target: Target, rows: pa.Table, commit: Commit) -> None:
        """Replace all rows."""
        frame = _frame(self._session_for(commit), rows)
        frame.write.format("delta").mode("overwrite").save(target.uri)

    def merge(self, target: Target, merge: Merge, commit: Commit) -> None:
        """Update, delete and insert."""
        session = self._session_for(commit)
        _frame(session, merge.source).createOrReplaceTempView(_SOURCE)
        session.sql(_statement(target.uri, merge))

    def _session_for(self, commit: Commit) -> SparkSession:
        session = self._session.newSession()
        session.conf.set("spark.databricks.delta.write.txnAppId", commit.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(commit.version))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", commit.note)
        return session


def _frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    # Without a schema Spark would make every timestamp one with a time zone.
    schema = StructType.fromJson(json.loads(Schema.from_arrow(rows.schema).to_json()))
    return session.createDataFrame(rows, schema)


def _statement(uri: str, merge: Merge) -> str:
    updates = ", ".join(f"t.{name} = {value}" for name, value in merge.updates.items())
    names, values = ", ".join(merge.inserts), ", ".join(merge.inserts.values())
    return (
        f"MERGE INTO delta.{quote(uri)} t USING {_SOURCE} s ON {merge.condition}"
        f" WHEN MATCHED AND s.{GONE} THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {updates}"
        f" WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({names}) VALUES ({values})"
    )
