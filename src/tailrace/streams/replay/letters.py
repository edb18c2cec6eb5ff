"""What a replay to a queue says of dead letters when it is done."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Decimal, InvalidOperation

from tailrace.sinks.letters.dead_letter import DeadLetters, lanes_of
from tailrace.sinks.letters.letter import LetterName
from tailrace.sinks.letters.message import offset_part, place_of, table_code
from tailrace.storage import ObjectMissing, Store
from tailrace.streams.replay.keys import record_name
from tailrace.streams.replay.request import Request
from tailrace.streams.replay.window import Window


def refused(store: Store, request: Request) -> str:
    """What a queue did not take: it is kept until the next replay."""
    name = record_name(request.stream)
    count = len(DeadLetters(store, name).names())
    if not count:
        return ""
    were = "message was" if count == 1 else "messages were"
    return f"{count} {were} refused: tailrace dlq ls {name}"


def left_out(store: Store, request: Request, window: Window) -> str:
    """What the stream's own queue has not got: it comes by a redrive, in its order."""
    if request.to_sink:
        return ""
    letters = DeadLetters(store, request.stream)
    count = len(
        lanes_of(
            name
            for name in letters.waiting()
            if _is_within(name, window) and _is_asked_for(letters, name, request)
        )
    )
    if not count:
        return ""
    rows = "a row waits" if count == 1 else f"{count} rows wait"
    return (
        f"in this range {rows} among the dead letters, left out here:"
        f" tailrace dlq redrive {request.stream}"
    )


def _is_within(name: LetterName, window: Window) -> bool:
    codes = {table_code(table.qualified) for table in window.tables}
    after, upto = (
        offset_part(place_of(0, int(at.commit_lsn), at.ordinal, 1))
        for at in (window.start, window.end)
    )
    return name.table_code in codes and after < offset_part(name.place) <= upto


def _is_asked_for(letters: DeadLetters, name: LetterName, request: Request) -> bool:
    """Whether it is of the row that is asked for, if only one is; a TRUNCATE is of every row."""
    if not request.key:
        return True
    with suppress(ObjectMissing):
        found = letters.read(name).key
        values = json.loads(found, parse_int=Decimal, parse_float=Decimal) if found else {}
        return all(_is_same(values.get(each), text) for each, text in request.key if values)
    return False


def _is_same(value: object, text: str) -> bool:
    """Whether a value of a key in JSON is the one that was asked for."""
    if isinstance(value, bool):
        return value == (text.lower() in ("t", "true"))
    if isinstance(value, Decimal):
        with suppress(InvalidOperation):
            return value == Decimal(text)
    return value == text
