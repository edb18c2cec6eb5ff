"""Sinks by the name of their type."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks import open_sink
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.delta import DeltaSink, table_uri
from tailrace.sinks.memory import MemorySink
from tailrace.sinks.parquet import ParquetSink
from tailrace.sinks.postgres import PostgresSink
from tests.sinks.source import Source, batch_of, relation


def test_types_open_their_sinks(tmp_path: Path) -> None:
    assert isinstance(open_sink({"type": "memory"}), MemorySink)
    assert isinstance(open_sink({"type": "console"}, out=io.StringIO()), ConsoleSink)
    lake = open_sink({"type": "delta", "path": str(tmp_path), "mode": "append"})
    assert isinstance(lake, DeltaSink)
    lake.prepare(relation(key=()))
    assert Path(table_uri(str(tmp_path), relation()), "_delta_log").is_dir()
    lake.close()
    files = open_sink({"type": "parquet", "path": str(tmp_path), "partition_by": "none"})
    assert isinstance(files, ParquetSink)
    files.close()
    copy = open_sink({"type": "postgres", "dsn": SecretStr("host=x password=hush")})
    assert isinstance(copy, PostgresSink)
    copy.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "unknown sink type"),
        ({"type": "kafak"}, "unknown sink type 'kafak'"),
        ({"type": "postgres"}, "needs a dsn"),
        ({"type": "postgres", "dsn": "host=x", "mode": "history"}, "unknown postgres mode"),
        ({"type": "postgres", "dsn": "host=x", "schema": ""}, "must be a name"),
        ({"type": "postgres", "dsn": "no dsn"}, "dsn of a postgres sink is not"),
        ({"type": "parquet"}, "needs a path"),
        ({"type": "parquet", "path": "/x", "partition_by": "id"}, "not partitioned by 'id'"),
        ({"type": "delta"}, "needs a path"),
        ({"type": "delta", "path": "/x", "mode": "merge"}, "unknown delta mode"),
        ({"type": "delta", "path": "/x", "engine": "rust"}, "unknown delta engine"),
        ({"type": "delta", "path": "/x", "engine": "delta-spark"}, "not set up"),
        ({"type": "delta", "path": "/x", "pathh": "/y"}, "no option pathh"),
        ({"type": "delta", "path": "/x", "deletion_vectors": True}, "only Delta on Spark"),
        ({"type": "delta", "path": "/x", "soft_delete": "yes"}, "soft_delete of a delta sink"),
        ({"type": "delta", "path": "/x", "partition_by": ["a"]}, "a list of columns for each"),
        ({"type": "delta", "path": "/x", "mode": "history", "soft_delete": True}, "soft_delete"),
        ({"type": "delta", "path": "/x", "vacuum_after": timedelta(hours=1)}, "at least 1d"),
    ],
)
def test_wrong_options_are_refused_with_a_hint(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_sink(options)
    assert caught.value.hint


@pytest.mark.spark
@pytest.mark.server
@pytest.mark.parametrize(
    ("engine", "writer"),
    [("auto", "Apache-Spark"), ("delta-spark", "Apache-Spark"), ("deltalake", "delta-rs")],
)
def test_engine_is_spark_where_its_jar_is_unless_told_otherwise(
    tmp_path: Path, delta_session: SparkSession, engine: str, writer: str
) -> None:
    sink = open_sink(
        {"type": "delta", "path": str(tmp_path), "engine": engine}, session=delta_session
    )
    source = Source()
    source.insert(id=1)
    sink.write(batch_of(1, source.take()))
    log = Path(table_uri(str(tmp_path), source.relation), "_delta_log")
    assert writer in sorted(log.glob("*.json"))[-1].read_text()
    sink.close()
