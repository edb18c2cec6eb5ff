"""The demo's course: start everything, write, come to rest, prove."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psycopg
from rich.console import Console

from tailrace.cli.children import Child
from tailrace.cli.proof import prove, show
from tailrace.cli.proof.lake import LakeTable
from tailrace.cli.screen import DemoFrame, Screen, TableRows
from tailrace.cli.shop import TABLES, Writers, create, stock
from tailrace.embedded import EmbeddedPostgres
from tailrace.errors import TailraceError
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import wal_position
from tailrace.postgres.session import Connection, connect
from tailrace.status import Report, gather
from tailrace.storage import open_store

START_TIMEOUT_S: Final = 180.0
REST_TIMEOUT_S: Final = 180.0
_FRAME_S: Final = 0.5
_NAME: Final = "demo"

_CONFIG: Final = """\
# Written by `tailrace demo`.
source: {name: demo}
log: {url: "file:.tailrace/log"}
capture: {tables: ["public.*"]}
streams:
  lake: {tables: ["public.*"], sink: {type: delta, path: ./lake, mode: upsert}}
"""


class Demonstration:
    """One run, in one directory."""

    def __init__(self, console: Console, directory: Path, stop: threading.Event) -> None:
        self._console = console
        self._directory = directory
        self._lake = directory / "lake"
        self._config = directory / "tailrace.yaml"
        self._stop = stop
        self._names = SourceNames.of(_NAME)
        self._began = time.monotonic()
        self._last_report: Report | None = None

    def run(self, seconds: float | None, *, writers: int, rate: float) -> bool:
        """Returns whether every lake table equals its source."""
        self._clear()
        with ExitStack() as stack:
            self._console.print("starting postgres, capture and spark", style="dim")
            server = EmbeddedPostgres(self._directory / ".tailrace" / "postgres")
            dsn = stack.enter_context(server).dsn
            conn = stack.enter_context(connect(dsn))
            create(conn)
            children = [self._child(stack, name) for name in ("capture", "pipeline")]
            if not self._await_start(conn, children):
                return False
            stock(conn)
            with Screen(self._console) as screen:
                shop = Writers(dsn, count=writers, rate=rate)
                self._write(shop, screen, conn, children, seconds)
                is_at_rest = self._rest(shop, screen, conn, children)
            return is_at_rest and self._prove(dsn)

    def _clear(self) -> None:
        """Make room, but only where a demo has been before or nothing is."""
        directory = self._directory
        if directory.exists() and any(directory.iterdir()) and not self._config.exists():
            raise TailraceError(
                f"{directory} is not empty, and not a demo's",
                hint="choose another directory with --dir",
            )
        if (directory / ".tailrace" / "postgres").exists():
            EmbeddedPostgres(directory / ".tailrace" / "postgres").destroy()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._config.write_text(_CONFIG, encoding="utf-8")

    def _child(self, stack: ExitStack, name: str) -> Child:
        log = self._directory / f"{name}.log"
        child = Child(name, [name, "--config", str(self._config)], log=log)
        stack.callback(child.stop)
        return child

    def _await_start(self, conn: Connection, children: list[Child]) -> bool:
        """Wait until the tables are captured; Spark may take longer, the log keeps everything."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._stop.wait(0.1):
            self._must_run(children)
            if len(self._report(conn).source.tables) == len(TABLES):
                return True
            if time.monotonic() > deadline:
                raise TailraceError("capture did not start in time", hint=_logs(children))
        return False

    def _write(
        self,
        shop: Writers,
        screen: Screen,
        conn: Connection,
        children: list[Child],
        seconds: float | None,
    ) -> None:
        self._began = time.monotonic()
        with shop:
            while not self._stop.wait(_FRAME_S):
                self._must_run(children)
                screen.show(self._frame("writing", shop, conn))
                if seconds is not None and time.monotonic() - self._began >= seconds:
                    break

    def _rest(self, shop: Writers, screen: Screen, conn: Connection, children: list[Child]) -> bool:
        """Wait until the log has everything that is committed, and the lake everything logged."""
        deadline = time.monotonic() + REST_TIMEOUT_S
        end = wal_position(conn)
        while True:
            self._must_run(children)
            screen.show(self._frame("coming to rest", shop, conn))
            report = self._report(conn)
            lake = report.streams[0]
            if (report.log.tip or 0) >= end and lake.lag_bytes == 0:
                return True
            if time.monotonic() > deadline:
                raise TailraceError("the lake did not come to rest in time", hint=_logs(children))
            time.sleep(_FRAME_S)

    def _prove(self, dsn: str) -> bool:
        proofs = prove(dsn, str(self._lake), TABLES)
        self._console.print(show(proofs))
        is_equal = all(proof.equal for proof in proofs)
        if is_equal:
            self._console.print("every lake table equals its source", style="bold green")
            self._print_next()
        else:
            self._console.print("the lake differs from its source", style="bold red")
        return is_equal

    def _print_next(self) -> None:
        path = self._lake / "public" / "orders"
        self._console.print(
            "\nthe lake holds plain Delta tables; any Delta reader opens them:\n"
            f"  python -c \"import deltalake; print(deltalake.DeltaTable('{path}')"
            '.to_pyarrow_table().slice(0, 5).to_pylist())"\n'
            "the log keeps every change:\n"
            f"  tailrace log cat --config {self._config} --table public.orders --limit 5\n"
            f"  tailrace log verify --config {self._config}\n"
            "go on with it:\n"
            f"  tailrace run --config {self._config}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def _report(self, conn: Connection) -> Report:
        store = open_store(f"file:{self._directory / '.tailrace' / 'log'}")
        return gather(conn.info.dsn, self._names, store, ["lake"])

    def _frame(self, phase: str, shop: Writers, conn: Connection) -> DemoFrame:
        report = self._report(conn)
        written = shop.written
        elapsed_s = time.monotonic() - self._began
        return DemoFrame(
            phase=phase,
            elapsed_s=elapsed_s,
            transactions=written.transactions,
            changes=written.changes,
            changes_per_s=written.changes / max(elapsed_s, 0.001),
            lag_ms=None,
            segments=report.log.object_count,
            log_bytes=report.log.stored_bytes,
            wal_retained_bytes=report.source.retained_wal_bytes,
            tables=tuple(self._rows(conn, table) for table in TABLES),
            trouble=shop.trouble,
        )

    def _rows(self, conn: Connection, table: str) -> TableRows:
        return TableRows(
            table.removeprefix("public."), _count(conn, table), self._lake_count(table)
        )

    def _lake_count(self, table: str) -> int | None:
        with suppress(Exception):
            opened = LakeTable.open(str(self._lake.joinpath(*table.split("."))))
            return None if opened is None else opened.count()
        return None

    def _must_run(self, children: list[Child]) -> None:
        for child in children:
            if child.status is not None:
                raise TailraceError(f"{child.name} has ended", hint=_logs([child]))


def _count(conn: Connection, table: str) -> int:
    schema, name = table.split(".")
    query = psycopg.sql.SQL("SELECT count(*) FROM {}").format(psycopg.sql.Identifier(schema, name))
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _logs(children: list[Child]) -> str:
    return "see " + " and ".join(str(child.log) for child in children)
