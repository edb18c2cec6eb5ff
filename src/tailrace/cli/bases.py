"""Bases as the configuration wants them."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from tailrace.bases import AutomaticBases, BaseSettings, BaseTaker, Limits
from tailrace.bases.spark_runner import SparkRunner
from tailrace.cli.config import Config
from tailrace.cli.source import current_dsn
from tailrace.cli.wiring import source_names
from tailrace.storage import Store


def base_settings(config: Config, dsn: str) -> BaseSettings:
    """What taking bases is told."""
    base = config.base
    limits = Limits(
        wait_s=base.max_wait.total_seconds(),
        snapshot_s=base.max_snapshot_age.total_seconds(),
        xmin_age_max=base.max_xmin_age,
        bytes_per_s=base.bytes_per_second,
    )
    return BaseSettings(dsn, source_names(config), limits)


def automatic_bases(config: Config, store: Store, spark: SparkSession) -> AutomaticBases:
    """Whatever table is taken up while streams run gets its base."""

    def taker(dsn: str, stop: threading.Event) -> BaseTaker:
        return BaseTaker(base_settings(config, dsn), store, SparkRunner(spark), stop=stop)

    return AutomaticBases(store, source_names(config), dsn=lambda: current_dsn(config), taker=taker)
