"""From the configuration to the parts that do the work."""

from __future__ import annotations

from tailrace.capture import Duties, Limits, Settings
from tailrace.cli.config import Config
from tailrace.log.retention import RetentionPolicy
from tailrace.postgres.quote import SourceNames


def source_names(config: Config) -> SourceNames:
    """The names of the slot and the publication."""
    return SourceNames.of(config.source.name)


def capture_settings(config: Config, dsn: str) -> Settings:
    """What capture is told."""
    capture, log = config.capture, config.log
    duties = Duties(
        dsn=dsn,
        names=source_names(config),
        patterns=capture.tables,
        heartbeat_interval_s=capture.heartbeat_interval.total_seconds(),
        retention=RetentionPolicy(
            age_s=log.retention.total_seconds(), bytes_max=log.retention_bytes
        ),
    )
    return Settings(duties, Limits(receive_timeout_s=capture.receive_timeout.total_seconds()))
