"""What an object store's client says when the store refuses: a few words of its many lines.

The library for objects and the one for Delta tables have the same client inside, and tell what it
says in forms of their own.
"""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_CODE: Final = re.compile(r"(?:<Code>|\(code: )(\w+)")
_STATUS: Final = re.compile(r"status code\W+(\d+ [\w ]+)")
_BUCKET_MISSING: Final = ("NoSuchBucket", "ContainerNotFound")
_BUCKET_HINT: Final = "make the bucket, or correct its name"
_CREDENTIALS_HINT: Final = (
    "check the credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,"
    " AWS_REGION, or a role) and that they may get, put, list and delete there"
)
# How a refusal is told in words, inside the answer to a bulk delete, and what the client asks when
# the environment has no credentials: the machine's own metadata service.
_DENIED: Final = (
    "lacked the necessary privileges",
    "lacked valid authentication credentials",
    "(code: AccessDenied)",
    "/latest/api/token",
    "/latest/meta-data/",
)


def is_bucket_missing(error: Exception) -> bool:
    """Whether not an object is missing, but all of them."""
    return any(code in str(error) for code in _BUCKET_MISSING)


def remedy(error: Exception) -> str:
    """What a person must see to before the store takes or gives anything; empty if nothing."""
    if is_bucket_missing(error):
        return _BUCKET_HINT
    return _CREDENTIALS_HINT if any(sign in str(error) for sign in _DENIED) else ""


def reason(error: Exception) -> str:
    """One short line of the client's many: the store's own code, its status, or the first line."""
    text = _COLOUR.sub("", str(error))
    if answer := _CODE.search(text) or _STATUS.search(text):
        return answer[1]
    return text.partition("\n")[0].rpartition(" - ")[2].lower()
