"""From the configuration to the parts that do the work."""

from __future__ import annotations

from tailrace.capture import Duties, Limits, Settings
from tailrace.cli.config import Config
from tailrace.log.retention import RetentionPolicy
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection


def source_names(config: Config) -> SourceNames:
    """The names of the slot and the publication."""
    return SourceNames.of(config.source.name)


def selection(config: Config) -> Selection:
    """The tables to capture."""
    return Selection(config.capture.tables, config.capture.inserts_only)


def capture_settings(config: Config, dsn: str) -> Settings:
    """What capture is told."""
    capture, log = config.capture, config.log
    duties = Duties(
        dsn=dsn,
        names=source_names(config),
        selection=selection(config),
        heartbeat_interval_s=capture.heartbeat_interval.total_seconds(),
        retention=RetentionPolicy(
            age_s=log.retention.total_seconds(), bytes_max=log.retention_bytes
        ),
    )
    return Settings(duties, Limits(receive_timeout_s=capture.receive_timeout.total_seconds()))
