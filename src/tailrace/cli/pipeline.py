"""`tailrace pipeline`: from the log to the sinks on Spark, until told to stop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.cli.config import Config
    from tailrace.cli.config import Stream as StreamSection


def pipeline(
    config: ConfigFile = None,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", help="Only this stream; may be repeated.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Start the streams over at the log's beginning.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Deliver the log to the sinks, each stream by a Spark query of its own.

    A stream goes on where it was, whatever ended it. Ctrl-C ends it cleanly.

    Example: tailrace pipeline --stream lake
    """
    from tailrace.cli.children import stop_with_parent
    from tailrace.cli.config import load
    from tailrace.cli.signals import StopSignals
    from tailrace.cli.wiring import sink_options
    from tailrace.sinks import open_sink
    from tailrace.spark.session import spark_session
    from tailrace.storage import open_store
    from tailrace.streams import Pipeline, Stream
    from tailrace.streams.record import StreamRecord

    settings = load(config)
    chosen = {name: _find(name, settings) for name in stream or settings.streams}
    store = open_store(settings.log.url)
    if reset:
        for name in chosen:
            StreamRecord(store, name).forget()
    with StopSignals() as signals:
        stop_with_parent(signals.event)
        work_dir = settings.directory / "spark"
        spark = spark_session(
            master=settings.spark.master,
            app_name=f"tailrace {settings.source.name}",
            packages=settings.spark.packages,
            settings=settings.spark.settings,
            work_dir=work_dir,
        )
        signals.install()
        try:
            streams = [
                Stream(
                    name=name,
                    tables=told.tables,
                    open_sink=partial(open_sink, sink_options(told), session=spark),
                    trigger_s=told.trigger_interval.total_seconds(),
                    changes_max=told.max_changes_per_batch,
                    bytes_max=told.max_bytes_per_batch,
                )
                for name, told in chosen.items()
            ]
            typer.echo(f"spark ui: {spark.sparkContext.uiWebUrl}", err=True)
            Pipeline(streams, spark, store, work_dir=work_dir).run(signals.event)
        finally:
            spark.stop()


def _find(name: str, settings: Config) -> StreamSection:
    if name not in settings.streams:
        known = ", ".join(settings.streams)
        raise ConfigError(f"there is no stream {name}", hint=f"streams: {known}")
    return settings.streams[name]
