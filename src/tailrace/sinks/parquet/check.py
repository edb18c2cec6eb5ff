"""Could change files be put where a stream wants them? Nothing is put to find out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tailrace.errors import TailraceError
from tailrace.postgres.finding import Finding, blocker
from tailrace.sinks.parquet.entry import PREFIX
from tailrace.storage import open_store


def check_place(path: str, subject: str) -> Iterator[Finding]:
    """What stands in the way of writing below a directory or the URL of a bucket's folder."""
    if "://" in path:
        try:
            open_store(path).list(PREFIX)
        except TailraceError as error:
            yield blocker(subject, str(error), error.hint)
        return
    place = Path(path)
    nearest = next(each for each in (place, *place.parents) if each.exists())
    if not nearest.is_dir():
        yield blocker(subject, f"{nearest} is a file", "choose another path for the sink")
    elif not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        fix = f"give this user read and write permission in {nearest}"
        yield blocker(subject, f"files cannot be put below {nearest}", fix)
