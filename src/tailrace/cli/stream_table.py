"""Streams on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from tailrace.cli.json_text import json_text
from tailrace.cli.quantity import show_duration, show_size
from tailrace.control.streams import Status, StreamRow

_OLD_S: Final = 30.0
_STYLES: Final = {Status.HEALTHY: "green", Status.STOPPED: "red", Status.PAUSED: "dim"}


def facts(row: StreamRow) -> dict[str, object]:
    """All there is to a stream, under the names of its columns."""
    return {
        "name": row.name,
        "origin": row.origin,
        "status": row.status,
        "reason": row.reason,
        "tables": row.definition.tables,
        "where": row.definition.where,
        "columns": row.definition.columns,
        "key": row.definition.key,
        "sink": row.definition.sink,
        "options": row.definition.options,
        "paused": row.paused,
        "revision": row.revision,
        "replay_from_ts": _time(row.replay_from_ts),
        "replay_to_ts": _time(row.replay_to_ts),
        **{name: _time(value) for name, value in row.state.items()},
    }


def table_of(rows: Sequence[StreamRow]) -> Table:
    """A line for each."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for title in ("stream", "status", "lag", "tables", "sink", "origin", ""):
        table.add_column(title, overflow="fold")
    for row in rows:
        lag = row.state.get("lag_bytes")
        table.add_row(
            Text(row.name),
            Text(row.status, style=_STYLES.get(row.status, "yellow")),
            # Nobody measures that of a paused one: it is what it was when it was paused.
            show_size(lag) if isinstance(lag, int) and not row.paused else "",
            Text(", ".join(row.definition.tables)),
            Text(str(row.definition.sink.get("type", ""))),
            Text(row.origin),
            Text(_remark(row)),
        )
    return table


def sheet_of(row: StreamRow) -> Table:
    """One stream whole, a line for each fact."""
    table = Table(show_header=False, box=None, padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    for name, value in facts(row).items():
        if value is not None and value not in ({}, ()):
            table.add_row(name, Text(_text(value), overflow="fold"))
    return table


def _text(value: object) -> str:
    match value:
        case tuple():
            return ", ".join(value)
        case Mapping():
            return json_text(value)
    return str(value)


def _remark(row: StreamRow) -> str:
    """The reason; or since when nobody has reported, if that is long ago."""
    reported = row.state.get("reported_at")
    if row.status in (Status.STOPPED, Status.PAUSED) or not isinstance(reported, datetime):
        return row.reason or ""
    age_s = (datetime.now(UTC) - reported).total_seconds()
    old = f"last reported {show_duration(age_s)} ago" if age_s > _OLD_S else ""
    return "; ".join(filter(None, [row.reason, old]))


def _time(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
