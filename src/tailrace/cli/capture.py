"""`tailrace capture`: from Postgres to the log, until told to stop."""

from __future__ import annotations

from tailrace.cli.options import ConfigFile, Verbose


def capture(config: ConfigFile = None, verbose: Verbose = False) -> None:
    """Capture every committed change into the log.

    Start it on as many machines as you like: one leads, the others stand by.
    Ctrl-C ends it cleanly.

    Example: tailrace capture --config tailrace.yaml
    """
    from tailrace.capture import Daemon, Metrics
    from tailrace.cli.children import stop_with_parent
    from tailrace.cli.config import load
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import capture_settings
    from tailrace.exposition import serve
    from tailrace.postgres.admission import require_tables
    from tailrace.postgres.session import connect
    from tailrace.storage import open_store

    settings = load(config)
    store = open_store(settings.log.url)
    with StopSignals() as signals:
        stop_with_parent(signals.event)
        with source_dsn(settings) as dsn:
            with connect(dsn) as conn:
                require_tables(conn, settings.capture.tables)
            metrics = Metrics(settings.source.name)
            if (port := settings.capture.metrics_port) is not None:
                serve(metrics.registry, port, setting="capture.metrics_port")
            told = capture_settings(settings, dsn)
            Daemon(told, store, metrics=metrics, stop=signals.event).run()
