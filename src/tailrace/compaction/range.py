"""How far a base can be folded: to the end of the log, or to where that is not possible.

Columns that were added behind the others are NULL in the rows that were there: whoever captures
asks for a new base if they have a default. Of any other change of the columns Postgres alone knows
what it means for the rows of the base, so a fold does not cross it. Nor does it cross another key:
what was changed under the old one does not say which row of the new one it means.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.log import Base, Reader
from tailrace.log.plan import Limits, Wanted, plan_end
from tailrace.model import Lsn, Offset, Relation


@dataclass(frozen=True, slots=True)
class Range:
    """The changes from the base up to `end`, under the shape that the table has there.

    `change_count` is how many there are at most, and `stopped_at` where the name, the columns or
    the key change, if that is why it ends there.
    """

    end: Lsn
    frame: bytes
    relation: Relation
    taken_ts_us: int
    change_count: int
    stopped_at: Offset | None


def wanted(base: Base) -> Wanted:
    """The base's table: it has its oid and its name."""

    def wants(relation: Relation) -> bool:
        own = base.relation
        return (relation.oid, relation.qualified) == (own.oid, own.qualified)

    return wants


def foldable(reader: Reader, base: Base, *, bytes_max: int) -> Range:
    """What to fold into the base at once: about `bytes_max` of the table's frames, in whole
    transactions.
    """
    after, wants = Offset.whole(base.position), wanted(base)
    limit = plan_end(reader, after, limits=Limits(1 << 62, bytes_max), wanted=wants)
    end = Offset.whole(limit.commit_lsn)
    frame, relation, taken_ts_us, count = base.frame, base.relation, base.taken_ts_us, 0
    for link in reader.walk(after):
        if Offset.whole(link.start) >= end:
            break
        oid, uses = relation.oid, sorted(link.header.relations, key=lambda use: use.since)
        for use in uses:
            if use.relation.oid != oid or use.since > end:
                continue
            if use.since > after:
                if not (wants(use.relation) and _continues(use.relation, relation)):
                    stop = Lsn(max(use.since.commit_lsn - 1, base.position))
                    return Range(stop, frame, relation, taken_ts_us, count, use.since)
                frame, relation = use.frame, use.relation
            count += use.change_count
        taken_ts_us = max(taken_ts_us, link.header.commit_ts_us_max)
    return Range(end.commit_lsn, frame, relation, taken_ts_us, count, None)


def _continues(newer: Relation, older: Relation) -> bool:
    """Whether the same columns come first, and the same ones are the key, in whatever order."""
    known, found = _columns(older), _columns(newer)
    is_known_alike = {*newer.key} == {*older.key} and newer.is_keyless == older.is_keyless
    return found[: len(known)] == known and is_known_alike


def _columns(relation: Relation) -> list[tuple[str, int, int]]:
    """What a line of a base depends on."""
    return [(column.name, column.type_oid, column.typmod) for column in relation.columns]
