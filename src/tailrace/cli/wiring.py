"""From the configuration to the parts that do the work."""

from __future__ import annotations

from datetime import timedelta

from tailrace.capture import Duties, Limits, Settings
from tailrace.capture.modes import CaptureMode, HybridSettings, TableRules
from tailrace.cli.config import Capture, Config, TableSettings
from tailrace.log.retention import RetentionPolicy
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection


def source_names(config: Config) -> SourceNames:
    """The names of the slot and the publication."""
    return SourceNames.of(config.source.name)


def selection(config: Config) -> Selection:
    """The tables to capture, and the streams that read them."""
    streams = {name: stream.tables for name, stream in config.streams.items()}
    return Selection(config.capture.tables, config.capture.inserts_only, streams)


def capture_settings(config: Config, dsn: str) -> Settings:
    """What capture is told."""
    capture, log = config.capture, config.log
    duties = Duties(
        dsn=dsn,
        names=source_names(config),
        selection=selection(config),
        heartbeat_interval_s=capture.heartbeat_interval.total_seconds(),
        hybrid=hybrid_settings(capture),
        retention=RetentionPolicy(
            age_s=log.retention.total_seconds(),
            bytes_max=log.retention_bytes,
            hard_bytes_max=log.hard_limit,
        ),
    )
    return Settings(duties, Limits(receive_timeout_s=capture.receive_timeout.total_seconds()))


def hybrid_settings(capture: Capture) -> HybridSettings:
    """From where changes are taken, and how that changes."""
    rules = TableRules(
        mode=CaptureMode(capture.mode),
        transition_timeout_s=capture.wal_transition_timeout.total_seconds(),
        auto_replica_identity=capture.auto_replica_identity,
        lock_timeout_ms=_ms(capture.lock_timeout),
        handover_lag_bytes_max=capture.max_handover_lag,
        shadow_s=0.0 if capture.shadow is None else capture.shadow.total_seconds(),
    )
    of_some = [(pattern, _rules(each, rules)) for pattern, each in capture.table_settings.items()]
    return HybridSettings(rules, of_some, capture.poll_interval.total_seconds())


def _rules(own: TableSettings, rules: TableRules) -> TableRules:
    """The rules for some tables: those for all, where they have none of their own."""
    timeout, shadow, lag = own.wal_transition_timeout, own.shadow, own.max_handover_lag
    is_auto, lock = own.auto_replica_identity, own.lock_timeout
    return TableRules(
        mode=rules.mode if own.mode is None else CaptureMode(own.mode),
        transition_timeout_s=timeout.total_seconds() if timeout else rules.transition_timeout_s,
        auto_replica_identity=rules.auto_replica_identity if is_auto is None else is_auto,
        lock_timeout_ms=_ms(lock) if lock else rules.lock_timeout_ms,
        handover_lag_bytes_max=rules.handover_lag_bytes_max if lag is None else lag,
        shadow_s=shadow.total_seconds() if shadow else rules.shadow_s,
    )


def _ms(value: timedelta) -> int:
    return int(value / timedelta(milliseconds=1))
