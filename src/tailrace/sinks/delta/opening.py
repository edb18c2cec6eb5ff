"""A lake as its options describe it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.columns import Mode
from tailrace.sinks.delta.embedded import EmbeddedEngine
from tailrace.sinks.delta.engine import Engine
from tailrace.sinks.delta.options import DeltaOptions
from tailrace.sinks.delta.sink import DeltaSink
from tailrace.sinks.delta.spark import SparkEngine, delta_is_available

OPTIONS: Final = (
    "path",
    "mode",
    "engine",
    "soft_delete",
    "partition_by",
    "cluster_by",
    "deletion_vectors",
    "compact_after",
    "vacuum_after",
)

Value = TypeVar("Value")


def open_delta(options: Mapping[str, object], session: SparkSession | None) -> DeltaSink:
    """Raises ConfigError."""
    if "path" not in options:
        raise ConfigError("a delta sink needs a path", hint="e.g. path: ./lake")
    standard = DeltaOptions()
    engine = _engine(str(options.get("engine", "auto")), session)
    deletion_vectors = _typed(options, "deletion_vectors", bool, standard.deletion_vectors)
    if deletion_vectors and isinstance(engine, EmbeddedEngine):
        raise ConfigError(
            "only Delta on Spark writes deletion vectors",
            hint="leave deletion_vectors out, or set up engine: delta-spark",
        )
    return DeltaSink(
        str(options["path"]),
        engine=engine,
        options=DeltaOptions(
            mode=delta_mode(options),
            soft_delete=_typed(options, "soft_delete", bool, standard.soft_delete),
            partition_by=_columns(options, "partition_by"),
            cluster_by=_columns(options, "cluster_by"),
            deletion_vectors=deletion_vectors,
            compact_after=_typed(options, "compact_after", int, standard.compact_after),
            vacuum_after=_typed(options, "vacuum_after", timedelta, standard.vacuum_after),
        ),
    )


def delta_mode(options: Mapping[str, object]) -> Mode:
    """What the tables of such a lake hold; raises ConfigError."""
    mode = str(options.get("mode", Mode.UPSERT))
    if mode not in list(Mode):
        raise ConfigError(f"unknown delta mode {mode!r}", hint=f"one of {', '.join(Mode)}")
    return Mode(mode)


def _typed(options: Mapping[str, object], name: str, kind: type[Value], default: Value) -> Value:
    value = options.get(name, default)
    if not isinstance(value, kind):
        raise ConfigError(f"{name} of a delta sink must be {kind.__name__}", hint=f"e.g. {default}")
    return value


def _columns(options: Mapping[str, object], name: str) -> dict[str, tuple[str, ...]]:
    """`schema.table` → columns."""
    value = options.get(name, {})
    if isinstance(value, Mapping) and all(
        isinstance(columns, list | tuple) and all(isinstance(column, str) for column in columns)
        for columns in value.values()
    ):
        return {str(table): tuple(columns) for table, columns in value.items()}
    raise ConfigError(
        f"{name} of a delta sink must give a list of columns for each table",
        hint=f"e.g. {name}: {{public.orders: [region]}}",
    )


def _engine(wanted: str, session: SparkSession | None) -> Engine:
    """Delta on Spark where it is set up, unless the options say otherwise."""
    match wanted:
        case "deltalake":
            return EmbeddedEngine()
        case "auto" if session is None or not delta_is_available(session):
            return EmbeddedEngine()
        case "auto" | "delta-spark" if session is not None and delta_is_available(session):
            return SparkEngine(session)
        case "delta-spark":
            raise ConfigError(
                "Delta on Spark is not set up in this session",
                hint="add the io.delta:delta-spark package, its session extension and its catalog"
                " to the Spark settings, or use engine: deltalake",
            )
        case _:
            raise ConfigError(
                f"unknown delta engine {wanted!r}", hint="auto, deltalake or delta-spark"
            )
