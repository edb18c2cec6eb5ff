"""Neighbouring segments taken as one: their frames one after the other, under one header.

What is in force for a table at the start of a segment is what its last Relation frame before it
says, so successive segments decode together as they do apart. Only one thing may be in the way: the
catalog may have said different things of the same Relation frame at two times, and a header has
room for one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tailrace.log.header import Header, Kind
from tailrace.log.plan import Piece
from tailrace.log.relations import join_uses
from tailrace.log.segment import Segment
from tailrace.model import Relation
from tailrace.postgres.frames import Frames


class Neighbours:
    """Successive segments without parts, of so many bytes at most; a single one may have more."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._versions: dict[bytes, Relation] = {}
        self.size = 0
        self.headers: list[Header] = []

    def takes(self, header: Header) -> bool:
        """Whether this segment can be the next."""
        if not self.headers:
            return True
        last = self.headers[-1]
        follows = (last.end, last.source) == (header.start, header.source)
        is_whole = not (last.parts or header.parts)
        fits = self.size + header.data_bytes <= self._bytes_max
        return follows and is_whole and fits and self._agrees(header)

    def add(self, header: Header) -> None:
        """Take it."""
        self.headers.append(header)
        self.size += header.data_bytes
        self._versions.update(header.versions)

    def _agrees(self, header: Header) -> bool:
        return all(
            self._versions.get(frame, relation) == relation
            for frame, relation in header.versions.items()
        )


def joined_header(headers: Sequence[Header], *, writer: str) -> Header:
    """One header for a run of neighbours."""
    return replace(
        headers[0],
        kind=Kind.MERGED,
        writer=writer,
        end=headers[-1].end,
        frame_count=sum(header.frame_count for header in headers),
        transaction_count=sum(header.transaction_count for header in headers),
        change_count=sum(header.change_count for header in headers),
        data_bytes=sum(header.data_bytes for header in headers),
        first=next((header.first for header in headers if header.first), None),
        last=next((header.last for header in reversed(headers) if header.last), None),
        commit_ts_us_min=min(header.commit_ts_us_min for header in headers),
        commit_ts_us_max=max(header.commit_ts_us_max for header in headers),
        relations=join_uses(header.relations for header in headers),
        note=next((header.note for header in reversed(headers) if header.note), None),
    )


def joined(
    found: Iterable[tuple[Piece, Segment]], *, bytes_max: int
) -> Iterator[tuple[Piece, Segment]]:
    """The same pieces, with neighbours as one: segments of a few rows each are quicker to decode
    together.
    """
    run: list[tuple[Piece, Segment]] = []
    neighbours = Neighbours(bytes_max)
    for piece, segment in found:
        if run and not (_follows(run[-1][0], piece) and neighbours.takes(segment.header)):
            yield _join(run)
            run, neighbours = [], Neighbours(bytes_max)
        run.append((piece, segment))
        neighbours.add(segment.header)
    if run:
        yield _join(run)


def _follows(last: Piece, piece: Piece) -> bool:
    return last.part is None and piece.part is None and last.upto == piece.after


def _join(run: list[tuple[Piece, Segment]]) -> tuple[Piece, Segment]:
    if len(run) == 1:
        return run[0]
    pieces, segments = zip(*run, strict=True)
    header = joined_header([segment.header for segment in segments], writer="")
    piece = replace(pieces[0], upto=pieces[-1].upto, data_bytes=header.data_bytes)
    return piece, Segment(header, Frames.concat([segment.frames for segment in segments]))
