"""`tailrace teardown`: remove what capture made in Postgres, after asking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import SourceError

if TYPE_CHECKING:
    from tailrace.postgres.quote import SourceNames
    from tailrace.storage import Store


def teardown(
    config: ConfigFile = None,
    log: Annotated[bool, typer.Option("--log", help="Delete the log as well.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    verbose: Verbose = False,
) -> None:
    """Drop slot, publications and triggers, and with --log delete the log.

    Without them a log cannot go on: capture must begin a new one. The schemas
    of triggers and buffers go as well, unless another source uses them.
    Tables in Postgres and in the lake stay as they are; a new log needs an
    empty place in the lake.

    Example: tailrace teardown --log
    """
    from tailrace.cli.config import load
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import source_names
    from tailrace.storage import open_store

    settings = load(config)
    names, store = source_names(settings), open_store(settings.log.url)
    what = f"slot {names.slot}, its publications, and triggers and buffers of its tables"
    if log:
        what += f", and the whole log at {store.url}"
    if not yes:
        typer.confirm(f"drop {what}?", abort=True)
    with source_dsn(settings) as dsn:
        _drop(dsn, names, store if log else None)
    typer.echo(f"dropped {what}")
    if not log:
        typer.echo("the log stays and can be read; to begin a new one, give it another log.url")


def _drop(dsn: str, names: SourceNames, log: Store | None) -> None:
    """As the leader, so that nobody captures meanwhile."""
    from tailrace.capture.origin import Attachment, require_own
    from tailrace.control.removal import remove_capture
    from tailrace.postgres.lock_session import LockSession
    from tailrace.postgres.publication import drop_publication
    from tailrace.postgres.server import read_server
    from tailrace.postgres.session import connect
    from tailrace.postgres.slot import drop_slot

    leader = LockSession(dsn)
    try:
        if not leader.try_lock(names.slot):
            raise SourceError(f"a capture process leads slot {names.slot}", hint="stop it first")
        with connect(dsn) as conn:
            if log is not None:
                # A wrong log.url must not cost another source its log.
                own = Attachment(conn, log, names, writer_id="", go_on=lambda: None)
                require_own(own, read_server(conn, slot=names.slot))
            drop_slot(conn, names.slot)
            for publication in (names.publication, names.inserts, names.buffers, names.shadow):
                drop_publication(conn, publication)
            remove_capture(conn, names, keep=leader.ping)
        if log is not None:
            _delete(log)
    finally:
        leader.close()


def _delete(store: Store) -> None:
    """Only what is the log's: a bucket may hold other things. The beginning goes last, so that a
    log of which half is gone is never taken for one that has not begun.
    """
    from tailrace.log import layout

    keys = [entry.key for level in layout.LEVELS for entry in store.list(level)]
    store.delete(key for key in keys if key != layout.GENESIS)
    store.delete([layout.GENESIS, layout.INTENT])
