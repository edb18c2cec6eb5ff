"""The demo's course: start everything, write, come to rest, prove."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rich.console import Console

from tailrace.cli.base_bar import BaseBar
from tailrace.cli.children import Children
from tailrace.cli.course import Course
from tailrace.cli.differences import show
from tailrace.cli.first_bases import FirstBases
from tailrace.cli.gauges import STREAM, Gauges
from tailrace.cli.screen import Screen
from tailrace.cli.shop import TABLES, Writers, create, fill_past, stock
from tailrace.embedded import EmbeddedPostgres
from tailrace.embedded.lock import acquire
from tailrace.errors import TailraceError
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection, connect
from tailrace.status import Report
from tailrace.storage import Store, open_store
from tailrace.verify.at_rest import compare_at_rest

_SOURCE: Final = "demo"

_CONFIG: Final = f"""\
# Written by `tailrace demo`.
source: {{name: {_SOURCE}}}
log: {{url: "file:.tailrace/log"}}
capture: {{tables: ["public.*"]}}
streams:
  {STREAM}: {{tables: ["public.*"], sink: {{type: delta, path: ./lake, mode: upsert}}}}
"""


class Demonstration:
    """One run, in one directory. `stop` ends the writing early, or the start."""

    def __init__(
        self, console: Console, directory: Path, stop: threading.Event, *, hybrid: bool = False
    ) -> None:
        self._console = console
        self._hybrid = hybrid
        self._directory = directory
        self._lake = directory / "lake"
        self._config = directory / "tailrace.yaml"
        self._stop = stop

    def run(self, seconds: float | None, *, writers: int, rate: float) -> bool:
        """Returns whether every lake table equals its source; `seconds` None writes until told to
        stop.
        """
        with ExitStack() as stack:
            lock = stack.enter_context(_locked(self._directory))
            self._clear()
            self._say("starting postgres")
            # Without logical decoding, as most servers are, only triggers can capture.
            settings = {"wal_level": "replica"} if self._hybrid else {}
            server = stack.enter_context(EmbeddedPostgres(self._postgres, settings=settings))
            dsn = server.dsn
            conn = stack.enter_context(connect(dsn))
            self._say("filling a shop with the orders of some months")
            create(conn)
            stock(conn)
            fill_past(conn)
            children = stack.enter_context(Children())
            for name in ("capture", "pipeline"):
                log = self._directory / f"{name}.log"
                children.start(name, ["--config", str(self._config)], log=log, pass_fds=[lock])
            gauges = stack.enter_context(closing(self._gauges(dsn)))
            course = Course(gauges, children, self._stop, logs=self._directory)
            if not self._open(course, conn):
                self._say("stopped during the start: there is nothing to prove")
                return False
            with Screen(self._console) as screen:
                shop = Writers(dsn, count=writers, rate=rate)
                halfway = partial(self._restart, server) if self._hybrid else None
                course.write(shop, screen, seconds, halfway=halfway)
                with connect(dsn) as last:
                    end = wal_position(last)
                course.rest(shop, screen, end=end)
            return self.prove(dsn)

    def _restart(self, server: EmbeddedPostgres) -> None:
        """What it takes to have changes from the WAL; capture notices it by itself."""
        self._say("restarting postgres with wal_level = logical")
        server.settings["wal_level"] = "logical"
        server.restart()

    @property
    def _postgres(self) -> Path:
        return self._directory / ".tailrace" / "postgres"

    def _gauges(self, dsn: str) -> Gauges:
        names = SourceNames.of(_SOURCE)
        return Gauges(dsn, names, self._store, lake=self._lake, tables=TABLES)

    @property
    def _store(self) -> Store:
        return open_store(f"file:{quote(str(self._directory / '.tailrace' / 'log'))}")

    def _clear(self) -> None:
        """Make room, but only where a demo has been before or nothing is."""
        directory = self._directory
        if directory.exists() and any(directory.iterdir()) and not self._is_ours():
            raise TailraceError(
                f"{directory} is not empty, and not a demo's",
                hint="choose another directory with --dir",
            )
        if self._postgres.exists():
            EmbeddedPostgres(self._postgres).destroy()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._config.write_text(_CONFIG, encoding="utf-8")

    def _is_ours(self) -> bool:
        mark, _, _ = _CONFIG.partition("\n")
        return self._config.is_file() and self._config.read_text(errors="replace").startswith(mark)

    def _open(self, course: Course, conn: Connection) -> bool:
        """Start capture and Spark with a first delivery; False if told to stop."""
        with self._waiting("starting capture"):
            if not course.wait(lambda report: len(report.source.tables) == len(TABLES)):
                return False
        bases = FirstBases(conn, self._store, TABLES)
        with self._waiting("starting spark, which takes a while; the log keeps every change"):
            if not course.wait(lambda _: bases.look().row_count > 0 or bases.are_complete):
                return False
        with BaseBar(self._console) as bar:

            def is_whole(_: Report) -> bool:
                bar.show(bases.look())
                return bases.are_complete

            if not course.wait(is_whole):
                return False
        with self._waiting("loading the bases into the lake"):
            return course.wait(_has_delivered)

    def prove(self, dsn: str) -> bool:
        """Compare every lake table with its source, and show what came of it."""
        results = compare_at_rest(dsn, str(self._lake), TABLES)
        self._console.print(show(results))
        is_equal = all(result.equal for result in results)
        if is_equal:
            self._console.print("every lake table equals its source", style="bold green")
            self._print_next()
        else:
            self._console.print("the lake differs from its source", style="bold red")
        return is_equal

    def _print_next(self) -> None:
        orders = self._lake / "public" / "orders"
        tailrace = shutil.which("tailrace") or str(Path(sys.executable).with_name("tailrace"))
        self._console.print(
            "\nThe lake holds plain Delta tables, which any Delta reader opens:\n"
            f'  {sys.executable} -c "import deltalake;'
            f" print(deltalake.DeltaTable('{orders}').to_pandas())\"\n"
            "The log keeps every change:\n"
            f"  {tailrace} log cat --table public.orders --limit 5 --config {self._config}\n"
            f"  {tailrace} log verify --config {self._config}\n"
            "Go on with it, and see how it is doing:\n"
            f"  {tailrace} run --config {self._config}\n"
            f"  {tailrace} status --config {self._config}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False)

    @contextmanager
    def _waiting(self, text: str) -> Iterator[None]:
        if not self._console.is_terminal:
            self._say(text)
        with self._console.status(text):
            yield


def _has_delivered(report: Report) -> bool:
    """Whether the first batch, which takes Spark longest, is in the lake."""
    position, start = report.streams[0].position, report.log.start
    return position is not None and start is not None and position > start


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """A demo's children may outlive it for a moment; they share this lock, so that the next demo
    waits for them before it clears the directory.
    """
    lock = acquire(directory.with_name(f"{directory.name}.lock"))
    try:
        yield lock
    finally:
        os.close(lock)
