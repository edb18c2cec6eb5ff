"""Bases: whole tables, read from Postgres in parallel as of one position, into the log."""

from tailrace.bases.automatic import AutomaticBases
from tailrace.bases.group import TableResult
from tailrace.bases.progress import BaseProgress
from tailrace.bases.take import BaseSettings, BaseTaker
from tailrace.bases.watching import Limits

__all__ = [
    "AutomaticBases",
    "BaseProgress",
    "BaseSettings",
    "BaseTaker",
    "Limits",
    "TableResult",
]
