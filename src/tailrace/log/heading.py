"""Makes the header of a segment from what the segment holds.

The writer uses it when a segment is sealed, and `verify` again when it is read: both must find the
same.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import SegmentCorrupt
from tailrace.log.header import Header, Kind, Note, Part, RelationUse, SourceIdentity
from tailrace.log.offsets import ChangeOffsets
from tailrace.log.relations import join_uses
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.postgres.integers import steps


def head_transactions(
    frames: Frames,
    offsets: ChangeOffsets,
    *,
    kind: Kind,
    source: SourceIdentity,
    writer: str,
    start: Lsn,
    relations: tuple[RelationUse, ...],
    note: Note | None = None,
) -> Header:
    """The header of whole transactions, the first of which follows `start`; raises
    SegmentCorrupt.
    """
    transactions = frames.transactions
    if (steps(transactions.end_lsn, since=start) <= 0).any():
        raise SegmentCorrupt(f"the transactions after {start} do not end in rising order")
    changing = offsets.counts.nonzero()[0]
    return Header(
        kind=kind,
        source=source,
        writer=writer,
        start=start,
        end=Lsn(transactions.end_lsn[-1]),
        frame_count=len(frames),
        transaction_count=len(transactions.end_lsn),
        change_count=int(offsets.counts.sum()),
        data_bytes=frames.data_bytes,
        first=offsets.at(int(changing[0])) if len(changing) else None,
        last=offsets.last_at(int(changing[-1])) if len(changing) else None,
        commit_ts_us_min=int(transactions.commit_ts_us.min()),
        commit_ts_us_max=int(transactions.commit_ts_us.max()),
        relations=relations,
        note=note,
    )


def head_part(
    frames: Frames,
    *,
    source: SourceIdentity,
    writer: str,
    start: Lsn,
    xid: int,
    relations: tuple[RelationUse, ...],
) -> Header:
    """The header of a piece of the transaction that follows `start` and has not ended yet."""
    return Header(
        kind=Kind.PART,
        source=source,
        writer=writer,
        start=start,
        end=start,
        frame_count=len(frames),
        change_count=int(frames.change_counts().sum()),
        data_bytes=frames.data_bytes,
        relations=relations,
        xid=xid,
    )


def head_parts(
    frames: Frames,
    *,
    source: SourceIdentity,
    writer: str,
    start: Lsn,
    xid: int,
    parts: tuple[Part, ...],
    uses: tuple[tuple[RelationUse, ...], ...],
    note: Note | None = None,
) -> Header:
    """The header of the one transaction that `parts` are pieces of; `frames` is its Commit and
    `uses` what the headers of the parts say.
    """
    header = head_transactions(
        frames,
        ChangeOffsets.of(frames),
        kind=Kind.SEGMENT,
        source=source,
        writer=writer,
        start=start,
        relations=(),
        note=note,
    )
    if len(frames) != 1:
        raise SegmentCorrupt(f"the transaction after {start} has more than a commit beside parts")
    end = header.end
    change_count = sum(part.change_count for part in parts)
    # Where the transaction ends is known only now.
    ended = [[replace(use, since=Offset(end, use.since.ordinal)) for use in one] for one in uses]
    return replace(
        header,
        change_count=change_count,
        first=Offset(end, 0) if change_count else None,
        last=Offset(end, change_count - 1) if change_count else None,
        relations=join_uses(ended),
        parts=parts,
        xid=xid,
    )
