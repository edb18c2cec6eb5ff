"""Rows as `COPY … TO STDOUT` writes them in text format."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tests.decode import wire

_CONTROL = "\b\f\n\r\t\v"
_ESCAPES = {
    **{ord(char): b"\\" + letter.encode() for char, letter in zip(_CONTROL, "bfnrtv", strict=True)},
    ord("\\"): b"\\\\",
}


def copy_line(row: Sequence[wire.Cell]) -> bytes:
    """One line, without its newline."""
    return b"\t".join(map(_cell, row))


def copy_lines(rows: Sequence[Sequence[wire.Cell]]) -> pa.BinaryArray:
    """As the rows of a base's part."""
    return pa.array([copy_line(row) for row in rows], pa.binary())


def _cell(value: wire.Cell) -> bytes:
    if value is None:
        return b"\\N"
    text = value if isinstance(value, bytes) else str(value).encode()
    return b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in text)
