"""Lets the partitions of a renamed table come under its new name.

Postgres tells the name of a root with the first row of each partition, and again only when
something about the partition itself has changed: a new name, or another schema, of the root does
not count (rel_sync_cache_relation_cb in pgoutput.c). Rows would go on to come under the old name
for as long as the connection lasts. A publication that is altered makes it tell everything again,
even if it is what it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tailrace.capture.removal import LOCK_TIMEOUT_MS
from tailrace.capture.roll import Roll, record_as_planned, settle
from tailrace.postgres.publication import fingerprint
from tailrace.postgres.restore_publication import restore_publication
from tailrace.postgres.session import Connection
from tailrace.storage import Store


def tell_names_again(conn: Connection, store: Store, rolls: Iterable[Roll], oid: int) -> None:
    """Rows of transactions that are committed from now on come under the table's name of now;
    raises psycopg.Error.
    """
    for roll in rolls:
        found = fingerprint(conn, roll.publication)
        if found is None or oid not in {member.relation_oid for member in found.members}:
            continue
        restore_publication(
            conn,
            roll.publication,
            (),
            inserts_only=roll.inserts_only,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
            before_commit=partial(record_as_planned, conn, store, roll),
        )
        settle(conn, store, roll)
