"""Joins a log and a slot, as the leader: begins both, or makes sure that one continues the other.

log       slot        then
empty     none        intent, publication, slot, genesis: in this order
intent    any         a beginning died half-way: what it made is dropped and made again
empty     there       refused: the slot belongs to another log
genesis   none, lost  SlotLost
genesis   ahead       SourceGap: what lies between cannot be had any more
genesis   at or behind  stream from the log's tip

A server whose own wal ends before the log's tip has been set back, and streaming from the tip would
skip what it writes next: SourceGap as well.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import psycopg

from tailrace.capture.footing import carries_buffers
from tailrace.capture.news import News
from tailrace.capture.origin import Attachment, check_source, claim, drop_left_over, recovered_tip
from tailrace.capture.roll import (
    Roll,
    buffer_roll,
    check_membership,
    make_publication,
    rolls_of,
    settle,
)
from tailrace.errors import SchemaError, SlotLost, SourceError, SourceGap
from tailrace.failpoint import failpoint
from tailrace.log import Header, SourceIdentity, Tip, put_genesis, read_genesis
from tailrace.model import Lsn
from tailrace.postgres.blockers import listed, writers
from tailrace.postgres.detection import must_be_logical
from tailrace.postgres.publication import drop_publication
from tailrace.postgres.server import Server, read_server
from tailrace.postgres.session import source_error
from tailrace.postgres.slot import SlotState, create_slot, read_slot
from tailrace.postgres.slot_proof import can_decode, have_ended, open_until

logger = logging.getLogger(__name__)

_PROOF_INTERVAL_S: Final = 0.1
SLOT_WAIT_MS: Final = 5_000
"""How long one try to make a slot waits for open transactions; shorter than the lock's timeout."""


_LOST_HINT: Final = (
    "changes since the log's end are lost: run `tailrace teardown` and begin a new log"
)
_OR_TRIGGERS: Final = "; or set capture.mode to auto, which goes on with triggers and new bases"


def attach(to: Attachment) -> Tip:
    """Where to stream from. Raises SourceError, SlotLost, SourceGap, ConfigError, LogError."""
    try:
        server = read_server(to.conn, slot=to.names.slot)
        slot = read_slot(to.conn, to.names.slot)
        if server.in_recovery:
            raise SourceError(
                "the server is a standby", hint="give source.dsn the address of the primary"
            )
        genesis = read_genesis(to.store)
        if genesis is None:
            return _begin(to, server, slot)
        return _continue(to, server, slot, genesis)
    except psycopg.Error as error:
        raise source_error(error) from error


def _begin(to: Attachment, server: Server, slot: SlotState | None) -> Tip:
    must_be_logical(server)
    claim(to, server, slot)
    failpoint("attach.after_intent")
    drop_left_over(to)
    for roll in _rolls(to, with_buffers=True):
        drop_publication(to.conn, roll.publication)
    for roll in _rolls(to, with_buffers=to.with_buffers):
        make_publication(to.conn, to.store, roll)
    failpoint("attach.after_publication")
    start = _make_slot_or_leave_nothing(to)
    failpoint("attach.after_slot")
    source = SourceIdentity(str(server.system_id), server.timeline)
    tip = put_genesis(to.store, source, start, writer_id=to.writer_id, note=to.note(server))
    failpoint("attach.after_genesis")
    logger.info("log begun slot=%s start=%s url=%s", to.names.slot, start, to.store.url)
    return tip


def _make_slot_or_leave_nothing(to: Attachment) -> Lsn:
    """Where there is no room for the slot, publications alone are of no use to anybody. Nor is a
    slot that nobody reads: the server would keep its wal for it until the disk is full.
    """
    try:
        to.before_slot()
        return _make_slot(to)
    except (SchemaError, SourceError) as error:
        # One that passes may mean that we do not lead any more, and that they are another's.
        if not error.retry:
            for roll in _rolls(to, with_buffers=to.with_buffers):
                drop_publication(to.conn, roll.publication)
        raise


def _make_slot(to: Attachment) -> Lsn:
    """Make the slot; while others' transactions are in the way, say so and try again."""
    news = News()
    while True:
        to.go_on()
        try:
            start = create_slot(to.conn, to.names.slot, lock_timeout_ms=SLOT_WAIT_MS)
        except SourceError as error:
            if not error.retry:
                raise
            if news.is_new("slot", str(error)):
                logger.warning("%s", error)
            continue
        if _is_sound(to, news):
            return start
        logger.warning("slot cannot decode what was open while it was made, making another")
        drop_left_over(to)


def _is_sound(to: Attachment, news: News) -> bool:
    """Wait for the transactions that were open while the slot was made, then try it."""
    until = open_until(to.conn, to.names.publication)
    while not have_ended(to.conn, until):
        to.go_on()
        waiting = f"the slot is tried when these have ended: {listed(writers(to.conn))}"
        if news.is_new("proof", waiting):
            logger.info("%s", waiting)
        time.sleep(_PROOF_INTERVAL_S)
    return can_decode(to.conn, to.names.slot, to.names.publication)


def _continue(to: Attachment, server: Server, slot: SlotState | None, genesis: Header) -> Tip:
    check_source(to, server, genesis)
    hint = _LOST_HINT + _OR_TRIGGERS * carries_buffers(genesis)
    if slot is None:
        raise SlotLost(
            f"slot {to.names.slot} does not exist, though the log at {to.store.url} needs it",
            hint=hint,
        )
    if slot.is_lost:
        raise SlotLost(f"slot {to.names.slot} was invalidated: {slot.invalidation}", hint=hint)
    tip = recovered_tip(to)
    check_gap(slot, tip)
    # What was done to their tables is mended before any is looked at.
    for roll in rolls_of(to.names):
        settle(to.conn, to.store, roll)
    if carries_buffers(genesis):
        check_membership(to.conn, to.store, buffer_roll(to.names))
    return tip


def _rolls(to: Attachment, *, with_buffers: bool) -> tuple[Roll, ...]:
    return (*rolls_of(to.names), buffer_roll(to.names)) if with_buffers else rolls_of(to.names)


def check_gap(slot: SlotState, tip: Tip) -> None:
    """Raise SourceGap if the slot has let go of what the log does not have. Postgres itself would
    stream on from where the slot is, without a word.
    """
    confirmed = slot.confirmed_flush_lsn or Lsn(0)
    if confirmed > tip.position.wal:
        raise SourceGap(
            f"slot {slot.name} is at {confirmed}, the log ends at {tip.position}: "
            "the changes between them are not in the log",
            hint="was the log restored from a backup, or the slot moved by hand? bring back the "
            "newest log; without it, run `tailrace teardown` and begin a new one",
        )
