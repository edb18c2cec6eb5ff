"""What a stream does before its query: it finds where it is, and loads the bases that are due.

A load may take hours, so it runs in a thread of its own beside the queries of other streams. An
unfinished batch of changes comes first: its number is taken, and bases are loaded after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tailrace.log import Base
from tailrace.log.bases import newest_bases, newest_positions, read_base
from tailrace.spark.selection import Selection
from tailrace.storage import ObjectMissing, Store
from tailrace.streams.batch_record import BatchRecord
from tailrace.streams.delivery import Delivery
from tailrace.streams.loading import base_rows
from tailrace.streams.taken import Taken, due_loads, matching

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """The load was told to stop; the target is as it was."""


def load_due(
    delivery: Delivery,
    store: Store,
    patterns: Sequence[str],
    selection: Selection,
    *,
    unfinished: BatchRecord | None,
    stop: threading.Event,
) -> None:
    """Load what is due; raises Stopped between two pieces of a base once told to stop."""
    _tell_left_out(delivery, store, patterns)
    if unfinished is not None:
        if unfinished.repair:
            delivery.repair(unfinished)
        elif unfinished.load is None:
            return
        else:
            _load_again(delivery, store, patterns, selection, unfinished, stop)
    # Again afterwards: while bases were loaded, newer ones may have been completed.
    while due := due_loads(newest_bases(store), delivery.tables, patterns, delivery.can_take):
        for base in due:
            # Before the look: from then on what follows the base is kept, for it or for us.
            delivery.need(base)
            if newest_positions(store).get(base.relation.oid) != base.position:
                # Outdone while another was loaded: the log may not have what follows it any more.
                break
            _load(delivery, store, base, selection, stop)


def _tell_left_out(delivery: Delivery, store: Store, patterns: Sequence[str]) -> None:
    bases = newest_bases(store)
    for table in matching(tuple(map(Taken.from_base, bases.values())), patterns):
        if not delivery.can_take(bases[table.oid].relation):
            logger.warning("table left out of the stream table=%s reason=no key", table.qualified)


def _load_again(
    delivery: Delivery,
    store: Store,
    patterns: Sequence[str],
    selection: Selection,
    unfinished: BatchRecord,
    stop: threading.Event,
) -> None:
    """Not if the stream is not asked for the table any more, or if the table was read anew since:
    these are the cures for a load that the sink refuses.
    """
    assert unfinished.load is not None
    table = unfinished.load
    newest = newest_bases(store).get(table.oid)
    is_outdone = newest is not None and newest.generation > table.generation
    is_left_out = newest is not None and not delivery.can_take(newest.relation)
    if is_outdone or is_left_out or not matching((table,), patterns):
        delivery.abandon(unfinished)
        return
    try:
        base = read_base(store, table.oid, table.position.commit_lsn)
    except ObjectMissing:
        # A newer one has taken its place, and is due.
        delivery.abandon(unfinished)
    else:
        _load(delivery, store, base, selection, stop)


def _load(
    delivery: Delivery, store: Store, base: Base, selection: Selection, stop: threading.Event
) -> None:
    what = (delivery.stream, base.relation.qualified, base.position)
    logger.info("table loading stream=%s table=%s position=%s rows=%d", *what, base.row_count)
    delivery.load(base, _until(stop, base_rows(store, base, selection)))
    logger.info("table loaded stream=%s table=%s position=%s", *what)


def _until(stop: threading.Event, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for piece in rows:
        if stop.is_set():
            raise Stopped
        yield piece
