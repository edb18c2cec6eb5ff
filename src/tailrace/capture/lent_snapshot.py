"""Snapshots for those who read whole tables, whichever way the log goes on.

With a slot, a temporary slot gives one. Without, only the snapshot of a drain has a position in the
log: the leader is asked for it, appends its next drain, and lends what it has read under.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import psycopg

from tailrace.capture.footing import is_drained
from tailrace.control.requests import Answer, answer, ask, close_requests, mark_imported
from tailrace.errors import SourceError
from tailrace.log import Reader, read_genesis
from tailrace.postgres.snapshot import Patience, Snapshot, SnapshotHolder
from tailrace.storage import Store

_POLL_S: Final = 0.05

_GONE: Final = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
"""What Postgres says of a snapshot whose holder has let go of it."""


def snapshot_holder(dsn: str, store: Store, *, application_name: str) -> SnapshotHolder:
    """The holder that fits the log as it is now."""
    genesis = read_genesis(store)
    if genesis is not None and is_drained(Reader(store).tip(), genesis):
        source = str((genesis.note or {}).get("slot"))
        return LentSnapshotHolder(dsn, application_name=application_name, source=source)
    return SnapshotHolder(dsn, application_name=application_name)


class LentSnapshotHolder(SnapshotHolder):
    """Holds the snapshot of a drain."""

    def __init__(self, dsn: str, *, application_name: str, source: str) -> None:
        super().__init__(dsn, application_name=application_name)
        self._source = source
        self._application_name = application_name

    def _try_to_hold(self, patience: Patience, deadline: float) -> Snapshot:
        while True:
            request = ask(self._other(), source=self._source, by=self._application_name)
            try:
                given = self._wait_for_answer(request, patience, deadline)
                snapshot = self._import(given.position, given.snapshot)
                mark_imported(self._other(), request)
                return snapshot
            except (LookupError, *_GONE):
                # Lent for too short a time; the next drain lends another.
                continue
            except BaseException:
                with suppress(psycopg.Error):
                    close_requests(self._other(), [request])
                raise

    def _wait_for_answer(self, request: int, patience: Patience, deadline: float) -> Answer:
        while (given := answer(self._other(), request)) is None:
            patience.go_on()
            if time.monotonic() >= deadline:
                raise SourceError(
                    "no drain has lent its snapshot",
                    hint="a table without a slot is read beside `tailrace capture` or `run`",
                    retry=True,
                )
            time.sleep(_POLL_S)
        return given
