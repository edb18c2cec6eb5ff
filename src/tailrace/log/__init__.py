"""The change log, the narrow waist: immutable segments of raw frames, chained by name."""

from tailrace.log.bases import Base, BaseOrigin, BasePart
from tailrace.log.header import Header, Kind, Part, RelationUse, SourceIdentity
from tailrace.log.reader import Link, Reader
from tailrace.log.segment import Segment
from tailrace.log.tip import Progress, Tip, read_genesis, recover_tip
from tailrace.log.writer import Writer, put_genesis

__all__ = [
    "Base",
    "BaseOrigin",
    "BasePart",
    "Header",
    "Kind",
    "Link",
    "Part",
    "Progress",
    "Reader",
    "RelationUse",
    "Segment",
    "SourceIdentity",
    "Tip",
    "Writer",
    "put_genesis",
    "read_genesis",
    "recover_tip",
]
