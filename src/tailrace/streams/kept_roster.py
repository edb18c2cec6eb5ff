"""The streams as the control schema last had them, beside the log.

    roster/<n>.json     the streams, when a pipeline saw for the n-th time that they had changed

So a pipeline that starts while the database is down delivers what it is to deliver, leaves alone
what is paused, and finds out afterwards which streams were deleted meanwhile. There are no secrets
in it: the table has none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from tailrace.control.streams import Definition, Origin, StreamRow
from tailrace.errors import SegmentCorrupt
from tailrace.log import layout
from tailrace.storage import ObjectExists, ObjectMissing, Store

_KEEP: Final = 2


@dataclass(frozen=True, slots=True)
class Kept:
    """A stream as far as a pipeline needs to know it. `made` is when its row was made, if it has
    one: a stream that was deleted and made again is another.
    """

    name: str
    origin: Origin
    definition: Definition
    paused: bool
    revision: int
    made: str = ""

    @classmethod
    def of(cls, row: StreamRow) -> Kept:
        """From the control schema."""
        at = row.state.get("created_at")
        made = at.astimezone(UTC).isoformat() if isinstance(at, datetime) else str(at or "")
        return cls(row.name, row.origin, row.definition, row.paused, row.revision, made)

    def is_gone(self, found: Kept | None) -> bool:
        """Whether SQL has deleted it, if this is what now stands under its name."""
        if self.origin is not Origin.SQL:
            return False
        return found is None or self.made not in ("", found.made)


def read_roster(store: Store) -> list[Kept] | None:
    """The newest that was kept; None if none was. Raises SegmentCorrupt."""
    while entries := store.list(layout.ROSTER):
        # One that vanishes while being read has been outdone: look again.
        with suppress(ObjectMissing):
            return _parsed(store.get(entries[-1].key), entries[-1].key)
    return None


def keep_roster(store: Store, streams: Sequence[Kept]) -> None:
    """Keep it; what is older goes. Of two pipelines that keep one at once, either will do."""
    entries = store.list(layout.ROSTER)
    number = int(entries[-1].key.removeprefix(layout.ROSTER).partition(".")[0]) if entries else 0
    data = json.dumps([asdict(each) for each in streams]).encode()
    with suppress(ObjectExists):
        store.put_new(f"{layout.ROSTER}{number + 1:016d}.json", data)
    store.delete(entry.key for entry in entries[: 1 - _KEEP])


def _parsed(data: bytes, key: str) -> list[Kept]:
    try:
        return [_kept(value) for value in json.loads(data)]
    except (ValueError, KeyError, TypeError) as error:
        raise SegmentCorrupt(f"{key} cannot be read", hint="delete it: it is made anew") from error


def _kept(value: dict[str, object]) -> Kept:
    match value:
        case {
            "name": str(name),
            "origin": str(origin),
            "paused": bool(paused),
            "revision": int(revision),
            "definition": {
                "tables": list(tables),
                "sink": dict(sink),
                "where": str() | None as where,
                "columns": list() | None as columns,
                "key": list() | None as key,
                "options": dict(options),
            },
        }:
            definition = Definition(
                tables=tuple(tables),
                sink=sink,
                where=where,
                columns=None if columns is None else tuple(columns),
                key=None if key is None else tuple(key),
                options=options,
            )
            made = str(value.get("made", ""))
            return Kept(name, Origin(origin), definition, paused, revision, made)
    raise ValueError("not a stream")
