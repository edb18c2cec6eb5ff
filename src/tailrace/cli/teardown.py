"""`tailrace teardown`: remove what capture made in Postgres, after asking."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.options import ConfigFile, Verbose
from tailrace.errors import SourceError


def teardown(
    config: ConfigFile = None,
    log: Annotated[bool, typer.Option("--log", help="Delete the log as well.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    verbose: Verbose = False,
) -> None:
    """Drop the replication slot and the publication, and with --log delete the log.

    Without its slot a log cannot go on: capture must begin a new one. Lake tables stay.

    Example: tailrace teardown --log
    """
    from tailrace.cli.config import load
    from tailrace.cli.source import source_dsn
    from tailrace.cli.wiring import source_names
    from tailrace.postgres.publication import drop_publication
    from tailrace.postgres.replication import ReplicationConnection
    from tailrace.postgres.session import connect
    from tailrace.postgres.slot import drop_slot
    from tailrace.storage import open_store

    settings = load(config)
    names = source_names(settings)
    what = f"slot {names.slot} and publication {names.publication}"
    if log:
        what += f", and the whole log at {settings.log.url}"
    if not yes:
        typer.confirm(f"drop {what}?", abort=True)
    with source_dsn(settings) as dsn:
        leader = ReplicationConnection(dsn)
        try:
            if not leader.try_lock(names.slot):
                raise SourceError(
                    f"a capture process leads slot {names.slot}", hint="stop it first"
                )
            with connect(dsn) as conn:
                drop_slot(conn, names.slot)
                drop_publication(conn, names.publication)
            if log:
                store = open_store(settings.log.url)
                store.delete([entry.key for entry in store.list("")])
        finally:
            leader.close()
    typer.echo(f"dropped {what}")
