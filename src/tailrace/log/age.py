"""How old the oldest transaction is that a reader of the log does not have yet."""

from __future__ import annotations

from tailrace.log import Link, Reader, segment
from tailrace.model import Lsn, Offset
from tailrace.storage import ObjectMissing


def oldest_commit_s(reader: Reader, position: Lsn) -> float | None:
    """When the first transaction after `position` was committed, since 1970 and by the clock of
    Postgres; None if there is none. Raises LogError if the log cannot be read from there.
    """
    link = next(reader.walk(Offset.whole(position)), None)
    return None if link is None else _first_commit_us(reader, link, position) / 1e6


def _first_commit_us(reader: Reader, link: Link, position: Lsn) -> int:
    """From the header alone, unless the position lies inside of the segment."""
    header = link.header
    if header.start >= position or header.transaction_count <= 1:
        return header.commit_ts_us_min
    try:
        found = segment.read(reader.store, link.key).frames.transactions
    except ObjectMissing:
        # Merged away at this moment: it is not older than this.
        return header.commit_ts_us_min
    return int(found.commit_ts_us[found.end_lsn > position].min())
