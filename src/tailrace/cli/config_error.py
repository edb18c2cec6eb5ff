"""Turns what the validator found into one line: file, line, key, fault, and what to write instead.

Values are shown as the file spells them, before `${…}` is expanded, and only if they are short and
harmless: a password that ends up under the wrong key must not reach the terminal.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tailrace.cli.document import Document, Place, dotted, shown
from tailrace.errors import ConfigError

_SECRET: Final = frozenset({"dsn", "settings", "secret", "headers", "properties"})

_TYPES: Final = {
    "sink": "delta, postgres, parquet, webhook, kafka, kinesis, console, memory",
    "dead_letter_queue": "webhook, kafka, kinesis",
}
_WANTED: Final = {
    "missing": "must be given",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "time_delta_type": "must be a duration, such as 30s",
}
_EXAMPLE: Final = {
    "dsn": 'dsn: "${TARGET_URL}"',
    "tables": 'tables: ["public.*"]',
    "sink": "sink: {type: delta, path: ./lake}",
    "dead_letter_queue": "dead_letter_queue: {type: kinesis, stream: orders-dead}",
    "source": "source: {name: main}",
    "partition_by": "partition_by: {public.orders: [region]}",
    "cluster_by": "cluster_by: {public.orders: [customer_id]}",
    "streams": 'streams: {lake: {tables: ["public.*"]}}',
}


def explain(error: ValidationError, written: Document) -> ConfigError:
    """The first fault in the file, and how many more there are."""
    faults = error.errors(include_url=False, include_input=False)
    first = min(faults, key=lambda fault: _line(fault, written))
    message, hint = (
        _unknown_key(first) if first["type"] == "unknown_key" else _wrong(first, written)
    )
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return written.error(_place(first), message + more, hint=hint)


def _line(fault: ErrorDetails, written: Document) -> int:
    place = _place(fault)
    while place and place not in written.lines:
        place = place[:-1]
    return written.lines.get(place, 0)


def _place(fault: ErrorDetails) -> Place:
    place = tuple(part for part in fault["loc"] if part != "[key]")
    at = 2 if place[:1] == ("streams",) else 0
    for part in ("sink", "dead_letter_queue"):
        if place[at : at + 1] == (part,):
            # Behind it the validator puts the type it chose, which the file does not have there.
            place = place[: at + 1] + place[at + 2 :]
            at += 1
    if fault["type"] == "unknown_key":
        place = (*place, fault["ctx"]["key"])
    if fault["type"].startswith("union_tag"):
        place = (*place, "type")
    return place


def _unknown_key(fault: ErrorDetails) -> tuple[str, str]:
    facts = fault["ctx"]
    known = ", ".join(facts["known"])
    nearest = f'did you mean "{facts["nearest"][0]}"? ' if facts["nearest"] else ""
    return f"unknown key {dotted(_place(fault))}", f"{nearest}known here: {known}"


def _wrong(fault: ErrorDetails, written: Document) -> tuple[str, str]:
    place = _place(fault)
    name = dotted(place) or "the file"
    found = _value(written, place)
    if found is None and place in written.lines:
        return f"{name} has no value", "leave the key out to take its default"
    if fault["type"] == "string_type" and not isinstance(found, dict | list):
        # YAML has already turned it into something else, so the file's own spelling is gone.
        return f"{name} must be text", "put it in quotes"
    reason, _, hint = _reason(fault).partition(": ")
    example = _EXAMPLE.get(str(place[-1]), "") if place else ""
    return f"{name}{_quoted(place, found)} {reason}", hint or example


def _reason(fault: ErrorDetails) -> str:
    """What is wrong, and after a colon, if there is more to say, what to write instead."""
    kind, facts = fault["type"], fault.get("ctx", {})
    if kind == "value_error":
        return str(facts["error"])
    if kind == "literal_error":
        return f"must be {facts['expected']}"
    if kind.startswith("union_tag"):
        return f"must be one of {_TYPES[str(_place(fault)[-2])]}"
    if kind == "greater_than_equal":
        return f"must be at least {facts['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {facts['le']}"
    return _WANTED.get(kind, "is not valid")


def _value(written: Document, place: Place) -> object:
    value = written.value
    for part in place:
        match value:
            case dict() if part in value:
                value = value[part]
            case list() if isinstance(part, int) and part < len(value):
                value = value[part]
            case _:
                return None
    return value


def _quoted(place: Place, value: object) -> str:
    if not place or _SECRET.intersection(place) or not isinstance(value, str | int | float):
        return ""
    text = shown(str(value).lower() if isinstance(value, bool) else str(value))
    return f' "{text}"' if text else ""
