"""A verification from the configuration, and the bar that shows how far it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tailrace.cli.config import Config
from tailrace.cli.config import Stream as StreamSection
from tailrace.cli.sink_sections import DeltaSink
from tailrace.cli.source import current_dsn
from tailrace.errors import SourceError, TailraceError
from tailrace.sinks import Sink, open_sink
from tailrace.spark.selection import Selection
from tailrace.storage import Store
from tailrace.streams.record import StreamRecord
from tailrace.verify.repair import Repairs
from tailrace.verify.result import StreamResult
from tailrace.verify.schedule import Plan
from tailrace.verify.stream import Subject, Verification, Watcher

logger = logging.getLogger(__name__)


def run_verification(
    dsn: str,
    store: Store,
    name: str,
    section: StreamSection,
    sink: DeltaSink,
    *,
    tables: list[str],
    repair: bool,
    watcher: Watcher,
    session: SparkSession | None = None,
) -> StreamResult:
    """Compare the tables of a stream; raises TailraceError. A repair uses `session`, if given."""
    chosen = Selection.of(columns=section.columns, where=section.where, key=section.key)
    subject = Subject(name, sink.path, tables, chosen, section.tables)
    if not repair:
        return Verification(dsn, store, subject, watcher).run()
    opened = sink_for_repairs(sink, session)
    try:
        repairs = Repairs(name, opened, StreamRecord(store, name), chosen)
        return Verification(dsn, store, subject, watcher, repairs).run()
    finally:
        opened.close()


def sink_for_repairs(sink: DeltaSink, session: SparkSession | None) -> Sink:
    """The lake, written by the engine that the stream has. Without a session that is `deltalake`,
    which makes no deletion vectors but keeps to those that are there.
    """
    # Upkeep of the lake is left to the pipeline.
    options: dict[str, object] = {**sink.model_dump(), "compact_after": 0}
    if session is None:
        options |= {"engine": "deltalake", "deletion_vectors": False}
    return open_sink(options, session=session)


def plans(
    settings: Config,
    store: Store,
    names: Iterable[str],
    stop: threading.Event,
    session: SparkSession,
) -> list[Plan]:
    """What the configuration asks to be verified by itself, of these streams."""
    found = []
    for name in names:
        section = settings.streams[name]
        if section.verify is not None and isinstance(section.sink, DeltaSink):
            run = partial(_scheduled, settings, store, name, stop, session)
            found.append(Plan(name, section.verify.every.total_seconds(), run))
    return found


def _scheduled(
    settings: Config, store: Store, name: str, stop: threading.Event, session: SparkSession
) -> StreamResult:
    section = settings.streams[name]
    dsn = current_dsn(settings)
    if dsn is None:
        raise SourceError("the embedded postgres is not running", retry=True)
    assert section.verify is not None and isinstance(section.sink, DeltaSink)
    return run_verification(
        dsn,
        store,
        name,
        section,
        section.sink,
        tables=[],
        repair=section.verify.repair,
        watcher=_Quiet(stop),
        session=session,
    )


class _Quiet:
    """A watcher that says nothing, and ends the verification when told to stop."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def say(self, text: str) -> None:
        logger.debug("verifying step=%s", text)
        self._go_on()

    def begin(self, table: str, row_count: int) -> None:
        logger.debug("verifying table=%s rows=%d", table, row_count)
        self._go_on()

    def advance(self, row_count: int) -> None:
        self._go_on()

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise TailraceError("told to stop")


class Bar:
    """`with Bar(console, title=…) as bar`: a watcher that draws, on a terminal."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of about {task.total:,.0f} rows"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._title = title
        self._task: TaskID = self._progress.add_task(title, total=0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Show it instead of a table's name."""
        self._progress.update(self._task, description=f"{self._title}: {text}")

    def begin(self, table: str, row_count: int) -> None:
        """Start over with the next table."""
        self._progress.reset(self._task, total=row_count, description=f"{self._title}: {table}")

    def advance(self, row_count: int) -> None:
        """Move the bar."""
        self._progress.advance(self._task, row_count)
