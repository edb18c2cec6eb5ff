"""Where change files go, and by what they are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Partition(StrEnum):
    """By what the files of a table are kept in folders of their own."""

    COMMIT_DATE = "commit_date"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """`path` is a directory, or the URL of a bucket's folder."""

    path: str
    partition_by: Partition = Partition.COMMIT_DATE
