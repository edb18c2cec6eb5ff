r"""Columns of texts as the input of a COPY in text format, by the column.

Arrow joins the columns in native code, with a tab between values and a newline behind each row; the
bytes of the joined column are then the copy itself. Only columns in which a byte has to be escaped
are gone through once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.postgres.binaries import Array
from tailrace.sinks.postgres.strings import STRING, join, joined_bytes

_NULL: Final = pa.scalar("\\N", STRING)
# The backslash first: the others bring one along.
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_IS_SPECIAL: Final = np.isin(np.arange(256), [ord(plain) for plain, _ in _ESCAPES])


def copy_text(columns: Sequence[Array]) -> memoryview:
    """The rows of these columns of texts; there is at least one column."""
    fields = [_escaped(column).fill_null(_NULL) for column in columns]
    return joined_bytes(join([join(fields, "\t"), "\n"]))


def _escaped(texts: Array) -> Array:
    if not _IS_SPECIAL[np.frombuffer(joined_bytes(texts), np.uint8)].any():
        return texts
    for plain, escaped in _ESCAPES:
        texts = pc.replace_substring(texts, plain, escaped)
    return texts
