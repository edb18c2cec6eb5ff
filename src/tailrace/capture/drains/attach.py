"""Joins a log and a source without a slot: begins the log, or goes on where its last drain ended.

log       then
empty     intent, genesis: in this order; whatever a beginning with a slot has left is dropped
drained   go on
streamed  the slot is gone: the caller puts triggers in its place before anything is drained
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psycopg

from tailrace.capture.footing import DRAINS, MODE, is_drained
from tailrace.capture.origin import Attachment, check_source, claim, drop_left_over, recovered_tip
from tailrace.errors import SourceError
from tailrace.failpoint import failpoint
from tailrace.log import Header, SourceIdentity, Tip, put_genesis, read_genesis
from tailrace.model import Lsn
from tailrace.postgres.publication import drop_publication
from tailrace.postgres.server import Server, read_server
from tailrace.postgres.session import Connection, source_error
from tailrace.postgres.slot import read_slot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drained:
    """Where the log ends; `has_lost_slot` if it was streamed until then, from a slot now gone."""

    tip: Tip
    has_lost_slot: bool


def attach_drains(to: Attachment) -> Drained:
    """Where to drain from. Raises SourceError, SourceGap, ConfigError, LogError."""
    try:
        server = read_server(to.conn, slot=to.names.slot)
        if server.in_recovery:
            raise SourceError(
                "the server is a standby", hint="give source.dsn the address of the primary"
            )
        genesis = read_genesis(to.store)
        if genesis is None:
            return Drained(_begin(to, server), has_lost_slot=False)
        return _continue(to, server, genesis)
    except psycopg.Error as error:
        raise source_error(error) from error


def _begin(to: Attachment, server: Server) -> Tip:
    claim(to, server, read_slot(to.conn, to.names.slot))
    failpoint("drain.after_intent")
    drop_left_over(to)
    for publication in (to.names.publication, to.names.inserts, to.names.buffers):
        drop_publication(to.conn, publication)
    source = SourceIdentity(str(server.system_id), server.timeline)
    note = {**to.note(server), MODE: DRAINS}
    start = _first_position(to.conn)
    tip = put_genesis(to.store, source, start, writer_id=to.writer_id, note=note)
    failpoint("drain.after_genesis")
    logger.info("log begun without a slot start=%s url=%s", start, to.store.url)
    return tip


def _first_position(conn: Connection) -> Lsn:
    """That of a message: positions of drains come from messages as well, and follow it."""
    query = "SELECT pg_logical_emit_message(true, 'tailrace.drain', '')::text"
    row = conn.execute(query).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def _continue(to: Attachment, server: Server, genesis: Header) -> Drained:
    check_source(to, server, genesis)
    tip = recovered_tip(to)
    return Drained(tip, has_lost_slot=not is_drained(tip, genesis))
