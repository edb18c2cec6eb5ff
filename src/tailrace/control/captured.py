"""Which tables are captured, by whatever means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tailrace.control.tracking import Mode, read_tracked
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.publication import published_tables
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table whose changes reach the log, and how."""

    oid: int
    name: str
    mode: Mode


def captured_tables(conn: Connection, names: SourceNames) -> list[CapturedTable]:
    """As the catalog has it: a table that is published comes from the WAL, whatever is on record;
    one that is on record and not published comes from its triggers, unless it is gone.
    """
    published = {each.relation_oid: each.table for each in published_tables(conn, names)}
    by_wal = [CapturedTable(oid, name, Mode.WAL) for oid, name in published.items()]
    tracked = {
        oid: each.mode
        for oid, each in read_tracked(conn, names.slot).items()
        if oid not in published and each.mode is not Mode.WAL
    }
    living = read_tables(conn, tracked)
    by_trigger = [CapturedTable(each.oid, each.qualified, tracked[each.oid]) for each in living]
    return sorted([*by_wal, *by_trigger], key=lambda each: each.name)


Tenure: TypeAlias = tuple[int, int] | None
"""Since when a table has been captured as it is: what its place in a publication is known by. None
for triggers, which come and go while its writers are locked out, so that it does not matter.
"""


def tenures(conn: Connection, names: SourceNames) -> dict[int, Tenure]:
    """That of each captured table, by oid; as long as it is the same, no change of the table was
    left out in between.
    """
    published = {each.relation_oid: (each.oid, each.xmin) for each in published_tables(conn, names)}
    return {each.oid: published.get(each.oid) for each in captured_tables(conn, names)}
