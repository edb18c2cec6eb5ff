"""Rows written by Delta on Spark, used when its jar is on the class path: large merges run on the
cluster.

Delta itself skips a write whose version is recorded already, and refuses one that another writer
overtook. On plain S3 it needs a log store that can put if absent (`spark.delta.logStore.*`) if
several drivers may write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
from deltalake import Schema
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tailrace.sinks.delta.bounds import quote
from tailrace.sinks.delta.commit import Commit
from tailrace.sinks.delta.merge import GONE, Merge
from tailrace.sinks.delta.target import FILE_BYTES, Target
from tailrace.spark.jar import has_class

SESSION_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What a session needs, beside the jar, when it is made."""

_ROWS_PER_TASK: Final = "250000"
_SOURCE: Final = "tailrace_source"


def delta_is_available(session: SparkSession) -> bool:
    """Whether the session can run a MERGE: it is set up for Delta, and the jar is there."""
    return all(
        wanted in (session.conf.get(name, "") or "") and has_class(session, wanted)
        for name, wanted in SESSION_SETTINGS.items()
    )


class SparkEngine:
    """Delta on Spark. Each write has a session of its own, because the record travels in the
    session's settings.
    """

    is_local = False

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

    def compact(self, target: Target, cluster_by: Sequence[str]) -> None:
        """On the cluster."""
        session = self._session.newSession()
        for name in ("maxFileSize", "minFileSize"):
            session.conf.set(f"spark.databricks.delta.optimize.{name}", str(FILE_BYTES))
        _keep_timestamps(session)
        columns = ", ".join(quote(name) for name in cluster_by)
        order = f" ZORDER BY ({columns})" if columns else ""
        session.sql(f"OPTIMIZE delta.{quote(target.uri)}{order}")

    def vacuum(self, target: Target, retention: timedelta) -> None:
        """On the cluster."""
        hours = int(retention / timedelta(hours=1))
        session = self._session.newSession()
        # The limit of the configuration is what keeps this safe.
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"VACUUM delta.{quote(target.uri)} RETAIN {hours} HOURS")

    def _session_for(self, commit: Commit) -> SparkSession:
        session = self._session.newSession()
        session.conf.set("spark.databricks.delta.write.txnAppId", commit.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(commit.version))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", commit.note)
        # As many rows become one task and one file; the default would make hundreds of small ones.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ROWS_PER_TASK)
        # Else a session that is set up otherwise would keep rows of a truncated table.
        session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
        _keep_timestamps(session)
        return session


def _keep_timestamps(session: SparkSession) -> None:
    # Spark's default is a type that other readers can hold from the year 1677 to 2262 only.
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def _frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    # Without a schema Spark would make every timestamp one with a time zone.
    schema = StructType.fromJson(json.loads(Schema.from_arrow(rows.schema).to_json()))
    return session.createDataFrame(rows, schema)


def _statement(uri: str, merge: Merge) -> str:
    names, values = ", ".join(merge.inserts), ", ".join(merge.inserts.values())
    clauses = [f"MERGE INTO delta.{quote(uri)} t USING {_SOURCE} s ON {merge.condition}"]
    gone = "DELETE" if merge.closes is None else f"UPDATE SET {_updates(merge.closes)}"
    clauses.append(f"WHEN MATCHED AND s.{GONE} THEN {gone}")
    if merge.updates is not None:
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {_updates(merge.updates)}")
    clauses.append(f"WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({names}) VALUES ({values})")
    if merge.rest is not None:
        updates = _updates(merge.rest.updates)
        clauses.append(
            f"WHEN NOT MATCHED BY SOURCE AND {merge.rest.where} THEN UPDATE SET {updates}"
        )
    return " ".join(clauses)


def _updates(updates: Mapping[str, str]) -> str:
    return ", ".join(f"t.{name} = {value}" for name, value in updates.items())
