"""On what footing a log stands: it continues a slot's stream, or the drains of triggers' buffers.

log                        slot        then
empty                      none        a slot, if the server and the settings allow one; else drains
streamed                   there       the slot
streamed                   none, lost  drains: triggers take over what the slot has let go of; if no
                                       table may use them the slot is asked for, and found missing
drained                    any         drains; a slot beside them is left from a beginning that died

A log that was begun for the WAL alone has no way to carry buffers, and stands on its slot for ever.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import takewhile
from typing import Final

import psycopg

from tailrace.capture.modes import HybridSettings
from tailrace.capture.origin import BUFFERS
from tailrace.log import Header, Reader, Tip, read_genesis
from tailrace.log.header import DRAINED
from tailrace.log.history import headers_back
from tailrace.model import Lsn
from tailrace.postgres.detection import can_use_logical_replication
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.postgres.slot import read_slot
from tailrace.storage import Store

MODE: Final = "mode"
DRAINS: Final = "drain"
"""In the note of a genesis: the log was begun without a slot."""


class Footing(StrEnum):
    """What the next changes of the log come from."""

    SLOT = "slot"
    DRAINS = "drains"


def footing(dsn: str, store: Store, names: SourceNames, hybrid: HybridSettings) -> Footing:
    """What a leader would have to do now; asked before and after the lock is won. A source that is
    captured from the WAL alone is not even asked. Raises SourceError, LogError.
    """
    genesis = read_genesis(store)
    if not (hybrid.may_use_triggers if genesis is None else carries_buffers(genesis)):
        return Footing.SLOT
    try:
        with connect(dsn) as conn:
            if genesis is None:
                return _first(conn, names, hybrid)
            if is_drained(Reader(store).tip(), genesis):
                return Footing.DRAINS
            slot = read_slot(conn, names.slot)
    except psycopg.Error as error:
        raise source_error(error) from error
    is_lost = slot is None or slot.is_lost
    return Footing.DRAINS if is_lost and hybrid.may_use_triggers else Footing.SLOT


def _first(conn: Connection, names: SourceNames, hybrid: HybridSettings) -> Footing:
    can_stream = hybrid.may_use_wal and can_use_logical_replication(conn, names).can
    return Footing.SLOT if can_stream else Footing.DRAINS


def carries_buffers(genesis: Header) -> bool:
    """Whether the log was begun with the means to take in triggers' buffers."""
    return BUFFERS in (genesis.note or {})


def is_drained(tip: Tip, genesis: Header) -> bool:
    """Whether the log's last segment came from a drain, or the log was begun for drains and has
    none yet.
    """
    if DRAINED in (tip.note or {}):
        return True
    return tip.segment_end == genesis.end and (genesis.note or {}).get(MODE) == DRAINS


def was_drained_after(store: Store, position: Lsn) -> bool:
    """Whether a drain ends after a position. Raises LogError."""
    later = takewhile(lambda header: header.end > position, headers_back(store))
    return any(DRAINED in (header.note or {}) for header in later)
