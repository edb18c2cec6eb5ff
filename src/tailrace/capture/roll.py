"""Which tables are published, kept beside the log and compared with the catalog.

A publication that someone changes by hand leaves a gap that Postgres does not report. Each change
of ours is recorded before it is committed, beside the record of what was there before; so the
catalog looks like one of the records, unless somebody else has changed it. As soon as it is seen
which one, older ones are deleted: they would excuse a table that is taken out by hand. Newer ones
excuse nothing, because a change that was never committed cannot be made again by hand with the same
oids; they may stand for a commit that is under way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.errors import SegmentCorrupt, SourceGap
from tailrace.failpoint import failpoint
from tailrace.log import layout
from tailrace.postgres.buffer import buffer, read_buffers
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.leading import as_leader
from tailrace.postgres.publication import (
    Fingerprint,
    create_publication,
    drop_publication,
    fingerprint,
    published_schemas,
)
from tailrace.postgres.quote import SourceNames, identifier, statement
from tailrace.postgres.session import Connection
from tailrace.storage import Store


@dataclass(frozen=True, slots=True)
class Roll:
    """A publication of ours, and the level of the log at which its records are kept."""

    publication: str
    records: str
    inserts_only: bool
    of_buffers: bool = False


def rolls_of(names: SourceNames) -> tuple[Roll, Roll]:
    """That of whole tables, and that of tables of which only inserts are captured."""
    return (
        Roll(names.publication, layout.PUBLICATION, inserts_only=False),
        Roll(names.inserts, layout.INSERTS, inserts_only=True),
    )


def buffer_roll(names: SourceNames) -> Roll:
    """That of the buffers that triggers write to."""
    return Roll(names.buffers, layout.BUFFERS, inserts_only=True, of_buffers=True)


def make_publication(conn: Connection, store: Store, roll: Roll) -> None:
    """Make the publication, without tables, and keep what it looks like."""
    made = create_publication(
        conn, roll.publication, inserts_only=roll.inserts_only, of_buffers=roll.of_buffers
    )
    record_membership(store, roll, made)


_UNCOMMITTED_MAX: Final = 8
"""How many records of changes that did not come about are kept."""


def record_membership(store: Store, roll: Roll, planned: Fingerprint) -> None:
    """Keep what the publication is going to look like; the writers of a table wait for this."""
    entries = store.list(roll.records)
    number = int(entries[-1].key.rsplit("/", 1)[-1].split(".")[0]) + 1 if entries else 0
    key = layout.publication_key(roll.records, number)
    store.put_new(key, json.dumps(planned.to_dict()).encode())
    failpoint("membership.after_record")


def remake_publications(
    conn: Connection, store: Store, names: SourceNames, buffers: Iterable[int], *, leader_pid: int
) -> None:
    """Where there is no slot: all three publications anew, and the buffers of these tables, which
    are those of the source. So they are there before a slot is, whatever was done to them by hand.
    Raises NotLeading if the backend `leader_pid` does not lead: another may stream through them.
    """
    rolls = (*rolls_of(names), buffer_roll(names))
    with as_leader(conn, names.slot, leader_pid):
        for roll in rolls:
            drop_publication(conn, roll.publication)
            make_publication(conn, store, roll)
        for table_oid in buffers:
            publish_buffer(conn, store, buffer_roll(names), table_oid)
    for roll in rolls:
        check_membership(conn, store, roll)


def record_as_planned(conn: Connection, store: Store, roll: Roll) -> None:
    """Inside a transaction that changes the publication: keep what it is going to look like."""
    planned = fingerprint(conn, roll.publication)
    assert planned is not None
    record_membership(store, roll, planned)


def is_published(conn: Connection, names: SourceNames, table_oid: int) -> bool:
    """Whether the slot streams the table itself."""
    found = (fingerprint(conn, roll.publication) for roll in rolls_of(names))
    members = (member for each in found if each is not None for member in each.members)
    return any(member.relation_oid == table_oid for member in members)


def publish_buffer(conn: Connection, store: Store, roll: Roll, table_oid: int) -> None:
    """Inside a transaction: publish a table's buffer, unless it is published."""
    members = {member.relation_oid for member in published(conn, roll).members}
    if read_buffers(conn)[table_oid] not in members:
        names = (identifier(roll.publication), buffer(table_oid))
        conn.execute(statement("ALTER PUBLICATION {} ADD TABLE ONLY {}", *names))
        record_as_planned(conn, store, roll)


def published(conn: Connection, roll: Roll) -> Fingerprint:
    """The publication as it is; raises SourceGap if it is gone."""
    found = fingerprint(conn, roll.publication)
    if found is None:
        raise SourceGap(f"publication {roll.publication} was dropped", hint=_HINT)
    return found


@dataclass(frozen=True, slots=True)
class Tampering:
    """What somebody else did to a publication, and the tables that are in it and not by us."""

    what: str
    doubtful: tuple[int, ...]


def settle(conn: Connection, store: Store, roll: Roll) -> Tampering | None:
    """Find out what has become of our own changes, and what anyone else has changed. Raises
    SourceGap if the publication is not the one that we made.
    """
    found = published(conn, roll)
    schemas = published_schemas(conn, roll.publication)
    # Read after the catalog: a record is written before the change that it announces.
    keys = [entry.key for entry in store.list(roll.records)]
    known, problems = [], [f"all tables of schema {schema} were added" for schema in schemas]
    for place in range(len(keys) - 1, -1, -1):
        known.append(_read_record(store, keys[place]))
        problem = _difference(conn, known[-1], found)
        if not problem and not schemas:
            store.delete([*keys[:place], *keys[place + 1 : -_UNCOMMITTED_MAX]])
            return None
        problems.append(problem)
    if found.oid not in {record.oid for record in known}:
        raise _gap(roll, "it was made again" if known else "nothing is known about it")
    # If its options were others, no table of it is sure to have come whole.
    ours = {each for record in known if record.xmin == found.xmin for each in record.members}
    doubtful = (member.relation_oid for member in found.members if member not in ours)
    return Tampering(next(filter(None, problems)), tuple(doubtful))


def check_membership(conn: Connection, store: Store, roll: Roll) -> None:
    """Raise SourceGap if the publication was changed by anyone but us."""
    tampering = settle(conn, store, roll)
    if tampering is not None:
        raise _gap(roll, tampering.what)


def _gap(roll: Roll, what: str) -> SourceGap:
    return SourceGap(f"publication {roll.publication} was changed by hand: {what}", hint=_HINT)


_HINT: Final = (
    "changes made meanwhile are not in the stream: run `tailrace teardown` and begin a new log"
)


def _read_record(store: Store, key: str) -> Fingerprint:
    try:
        return Fingerprint.from_dict(json.loads(store.get(key)))
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read") from error


def _difference(conn: Connection, record: Fingerprint, found: Fingerprint) -> str:
    """What differs, or nothing. A table that was dropped has left every publication rightly."""
    if (record.oid, record.xmin) != (found.oid, found.xmin):
        return "it was altered"
    known = {member.relation_oid for member in record.members}
    for member in found.members:
        if member not in record.members:
            return f"{member.table} was added{' again' * (member.relation_oid in known)}"
    missing = [member for member in record.members if member not in found.members]
    living = {table.oid for table in read_tables(conn, [m.relation_oid for m in missing])}
    for member in missing:
        if member.relation_oid in living:
            return f"{member.table} was taken out"
    return ""
