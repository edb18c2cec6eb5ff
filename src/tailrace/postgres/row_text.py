"""The text of a whole row, as Postgres writes a composite value: `(1,"a b",,t)`.

A field without a character is NULL; one with a special character is in double quotes, in which a
quote and a backslash are doubled (record_out in src/backend/utils/adt/rowtypes.c).
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.errors import SegmentCorrupt

_FIELD: Final = re.compile(rb'"((?:[^"\\]|""|\\\\)*)"([,)])|([^",()\\]*)([,)])', re.DOTALL)
_DOUBLED: Final = re.compile(rb'""|\\\\')


def split_row(text: bytes) -> list[bytes | None]:
    """The fields of a row's text; raises SegmentCorrupt.

    >>> split_row(b'(1,"a b",,t)')
    [b'1', b'a b', None, b't']
    """
    if text == b"()":
        return []
    fields: list[bytes | None] = []
    at, last = 1, b","
    while last == b"," and text[:1] == b"(":
        found = _FIELD.match(text, at)
        if found is None:
            break
        quoted, quoted_end, plain, plain_end = found.groups()
        if quoted_end:
            fields.append(_DOUBLED.sub(lambda pair: pair[0][:1], quoted))
        else:
            fields.append(plain or None)
        at, last = found.end(), quoted_end or plain_end
    if last != b")" or at != len(text):
        raise SegmentCorrupt("the text of a row cannot be read")
    return fields
