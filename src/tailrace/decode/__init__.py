"""Frames to Arrow columns: pgoutput's rows, read by the buffer and typed, with their place in the
log.
"""

from tailrace.decode.base import decode_base
from tailrace.decode.decoder import TableChanges, decode
from tailrace.decode.transactions import OpenTransaction
from tailrace.decode.types import arrow_schema, change_schema

__all__ = [
    "OpenTransaction",
    "TableChanges",
    "arrow_schema",
    "change_schema",
    "decode",
    "decode_base",
]
