"""The control schema beside a command: brought up to date with the file, or done without."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import psycopg
import typer

from tailrace.cli.config import Config
from tailrace.cli.config import Stream as StreamSection
from tailrace.cli.definitions import declared, resolve
from tailrace.cli.source import current_dsn
from tailrace.cli.stream_plan import carry_out, plan_streams
from tailrace.cli.wiring import source_names
from tailrace.control.schema import migrate
from tailrace.control.streams import StreamRow, declare, read_streams, reporting
from tailrace.errors import SourceError
from tailrace.postgres.lock_session import LockSession, refuse_pooler
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.storage import Store
from tailrace.streams.control import Control
from tailrace.streams.kept_roster import Kept
from tailrace.streams.stream import Stream

logger = logging.getLogger(__name__)


def synchronise(config: Config) -> list[StreamRow] | None:
    """Show what the file changes, and change it; returns the streams that there are, or None if the
    control schema cannot be had: then the streams of the file flow without it. Raises ConfigError
    behind a pooler, where nobody can lead.
    """
    try:
        with control_session(config) as conn:
            refuse_pooler(conn)
            return bring_up_to_date(conn, config)
    except SourceError as error:
        hint = f" hint={error.hint}" if error.hint else ""
        logger.warning("streams are delivered without their table error=%s%s", error, hint)
        return None


def bring_up_to_date(conn: Connection, config: Config) -> list[StreamRow]:
    """Make the schema, and let it have the streams of the file; raises SourceError."""
    source = source_names(config).slot
    try:
        migrate(conn)
        plan = plan_streams(conn, source, declared(config))
        for line in plan.lines():
            typer.echo(line)
        carry_out(conn, source, plan)
        return read_streams(conn, source)
    except psycopg.Error as error:
        raise source_error(error) from error


def have_row(conn: Connection, config: Config, name: str) -> None:
    """Make the schema, and let it have this one stream of the file, unless it has a row already:
    who names a stream means no other, nor what the file says of it by now. Raises SourceError.
    """
    source = source_names(config).slot
    try:
        migrate(conn)
        if any(row.name == name for row in read_streams(conn, source)):
            return
        with reporting(conn):
            for each in declared(config):
                if each.name == name:
                    declare(conn, source, name, each.definition)
    except psycopg.Error as error:
        raise source_error(error) from error


def control_session(config: Config) -> Connection:
    """A session on the source; raises SourceError."""
    return connect(_dsn(config))


def lock_session(config: Config) -> LockSession:
    """A session that can lead streams; raises SourceError."""
    return LockSession(_dsn(config))


def control_of(
    config: Config,
    store: Store,
    make: Callable[[str, StreamSection], Stream],
    *,
    only: frozenset[str] | None,
) -> Control:
    """What follows the control schema for a pipeline; `make` is given a stream's section."""

    def made(kept: Kept) -> Stream:
        return make(kept.name, resolve(config, kept))

    return Control(
        partial(lock_session, config),
        store,
        source=source_names(config).slot,
        declared=declared(config),
        resolve=made,
        only=only,
    )


def await_free(config: Config, name: str, *, patience_s: float) -> bool:
    """Whether nobody delivers a stream any more, within a while; raises SourceError."""
    session, pause = lock_session(config), threading.Event()
    try:
        for _ in range(max(1, int(patience_s / 0.2))):
            if session.try_lock(f"{source_names(config).slot} stream {name}"):
                return True
            pause.wait(0.2)
        return False
    finally:
        session.close()


def _dsn(config: Config) -> str:
    dsn = current_dsn(config)
    if dsn is None:
        raise SourceError(
            "the embedded postgres is not running", hint="`tailrace run` starts it", retry=True
        )
    return dsn
