"""Reads the newest bases and checks what readers rely on: every part is there and whole, and the
log still has what follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.errors import SegmentCorrupt
from tailrace.log.bases import Base, newest_positions, read_base, read_base_part
from tailrace.model import Lsn
from tailrace.storage import ObjectMissing, Store


def verify_bases(store: Store, *, begin: Lsn) -> Iterator[str]:
    """What is wrong with each base, or nothing; one that is outdone meanwhile is passed over."""
    for oid, position in sorted(newest_positions(store).items()):
        try:
            base = read_base(store, oid, position)
        except ObjectMissing:
            continue
        except SegmentCorrupt as error:
            yield str(error)
            continue
        yield _problem(store, base, begin)


def _problem(store: Store, base: Base, begin: Lsn) -> str:
    if base.position < begin:
        return f"{base.key} is of no use: the log begins at {begin}, after it"
    for part in base.parts:
        try:
            read_base_part(store, part)
        except SegmentCorrupt as error:
            return str(error)
        except ObjectMissing:
            if newest_positions(store).get(base.relation.oid) == base.position:
                return f"{part.key}, which {base.key} names, is missing"
            return ""
    return ""
