"""Whether a log and a server belong together, and who is about to begin a log.

An intent is put before anything is made in Postgres: whoever dies half-way leaves it behind, and
the next one knows that what is found there may be dropped and made again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tailrace.errors import ConfigError, SegmentMissing, SourceError, SourceGap
from tailrace.log import Header, Tip, layout, read_genesis, recover_tip
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import Server, wal_position
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import SlotState, drop_slot
from tailrace.storage import ObjectExists, ObjectMissing, Store

logger = logging.getLogger(__name__)

BUFFERS: Final = "buffers"
"""In the note of a genesis: the publication of buffers, which is made before any slot."""

LEFT_OVER_WAIT_S: Final = 30.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Attachment:
    """Everything that joining a log and a source needs; `go_on` is called between steps, and raises
    if told to stop. With `with_buffers` a new log can take in what triggers have buffered.
    `before_slot` is called before a slot is made, and raises SchemaError if there is no use for it.
    """

    conn: Connection
    store: Store
    names: SourceNames
    writer_id: str
    go_on: Callable[[], None]
    with_buffers: bool = False
    before_slot: Callable[[], None] = lambda: None

    def note(self, server: Server) -> dict[str, object]:
        """What the genesis of a new log says of its source."""
        note: dict[str, object] = {
            "slot": self.names.slot,
            "publication": self.names.publication,
            "database": server.database,
        }
        return {**note, BUFFERS: self.names.buffers} if self.with_buffers else note


def claim(to: Attachment, server: Server, slot: SlotState | None) -> None:
    """Put the intent to begin a log here, or find our own. Raises SourceError, ConfigError and
    SegmentMissing if what is there belongs to another.
    """
    if to.store.list(layout.SEGMENTS):
        raise SegmentMissing(
            f"{layout.GENESIS} is missing, and the log goes on after it",
            hint="restore the object from a backup",
        )
    if _has_intent(to, server):
        return
    if slot is not None:
        raise SourceError(
            f"slot {to.names.slot} exists, but the log at {to.store.url} is empty",
            hint="correct log.url; or, if that log is gone for good, run `tailrace teardown`",
        )
    for publication in (to.names.publication, to.names.inserts, to.names.buffers):
        if fingerprint(to.conn, publication) is not None:
            raise SourceError(
                f"publication {publication} exists, but not by us",
                hint="choose another source.name, or run `tailrace teardown`",
            )
    _put_intent(to, server)


def drop_left_over(to: Attachment) -> None:
    """Drop a slot whose making has come to nothing. Who died at that is still at it on the server,
    until it has waited for whom it waits for. Nobody streams from such a slot: if it stays in use,
    we do not lead any more. Raises SourceError.
    """
    deadline, is_said = time.monotonic() + LEFT_OVER_WAIT_S, False
    while True:
        to.go_on()
        try:
            drop_slot(to.conn, to.names.slot, ends_sender=False)
            return
        except SourceError as error:
            if not error.retry or time.monotonic() >= deadline:
                raise
            if not is_said:
                logger.warning("%s, which is waited for", error)
                is_said = True
        time.sleep(_POLL_S)


def require_own(to: Attachment, server: Server) -> None:
    """Raise ConfigError if a log that is there, or only begun, is another's."""
    genesis = read_genesis(to.store)
    if genesis is not None:
        _check_owner(to, server, genesis)
    else:
        _has_intent(to, server)


def check_source(to: Attachment, server: Server, genesis: Header) -> None:
    """Raise ConfigError or SourceGap unless the log is of this server, and of this history."""
    _check_owner(to, server, genesis)
    if genesis.source.timeline != server.timeline:
        raise SourceGap(
            f"the server is on timeline {server.timeline}, the log on {genesis.source.timeline}",
            hint="after a failover or a restore the log cannot go on: begin a new one",
        )


def _check_owner(to: Attachment, server: Server, genesis: Header) -> None:
    note = genesis.note or {}
    if genesis.source.system_id != str(server.system_id) or note["database"] != server.database:
        raise ConfigError(
            f"the log at {to.store.url} belongs to another database",
            hint="correct source.dsn or log.url: each database needs a log of its own",
        )
    if note["slot"] != to.names.slot:
        raise ConfigError(
            f"the log at {to.store.url} belongs to slot {note['slot']}",
            hint="correct source.name or log.url: each source needs a log of its own",
        )


def _has_intent(to: Attachment, server: Server) -> bool:
    try:
        intent = json.loads(to.store.get(layout.INTENT))
    except ObjectMissing:
        return False
    if intent != _intent(to, server):
        raise ConfigError(
            f"the log at {to.store.url} was begun for another database or slot",
            hint="correct source.dsn, source.name or log.url",
        )
    return True


def _put_intent(to: Attachment, server: Server) -> None:
    with suppress(ObjectExists):
        to.store.put_new(layout.INTENT, json.dumps(_intent(to, server)).encode())


def _intent(to: Attachment, server: Server) -> dict[str, str]:
    return {
        "system_id": str(server.system_id),
        "database": server.database,
        "slot": to.names.slot,
    }


def recovered_tip(to: Attachment) -> Tip:
    """Where the log ends, for a leader that goes on with it; a server that has not written so far
    is another one.
    """
    to.go_on()
    tip = recover_tip(to.store)
    assert tip is not None
    written = wal_position(to.conn)
    if written < tip.position.wal:
        raise SourceGap(
            f"the server has written its wal up to {written}, the log ends at {tip.position}",
            hint="was the server restored from an older copy? then begin a new log",
        )
    return tip
