"""Comparisons of tables as a table for people, with the differences below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailrace.verify.difference import Difference, RangeDifference
from tailrace.verify.result import TableResult

_VALUE_LENGTH_MAX: Final = 60
_RANGES_MAX: Final = 5


def show(results: Sequence[TableResult], *, title: str = "source = lake") -> RenderableType:
    """One line for each table, then what differs."""
    table = Table("table", title=title, title_justify="left")
    table.add_column("source rows", justify="right")
    table.add_column("lake rows", justify="right")
    table.add_column("equal")
    for result in results:
        verdict = Text("yes", "green") if result.equal else Text("NO", "bold red")
        table.add_row(result.table, f"{result.source_rows:,}", f"{result.lake_rows:,}", verdict)
    return Group(table, *(line for result in results for line in _reasons(result)))


def _reasons(result: TableResult) -> list[Text]:
    lines = [Text(f"{result.table}: {_range(each)}") for each in result.ranges[:_RANGES_MAX]]
    if more := result.ranges[_RANGES_MAX:]:
        lines.append(Text(f"{result.table}: {len(more)} more ranges differ"))
    lines += [Text(f"{result.table}: {_reason(difference)}") for difference in result.differences]
    if result.problem:
        lines.insert(0, Text(f"{result.table}: {result.problem}"))
    return lines


def _range(found: RangeDifference) -> str:
    low, high = found.low or "the first", found.high or "the last"
    counts = f"{found.source_rows:,} rows in the source, {found.lake_rows:,} in the lake"
    return f"keys from {low} to {high} differ: {counts}"


def _reason(difference: Difference) -> str:
    key = " ".join(f"{name}={_value(text)}" for name, text in difference.key.items())
    if difference.source is None and difference.lake is not None:
        return f"{key} is only in the lake: {_row(difference.lake)}"
    if difference.lake is None and difference.source is not None:
        return f"{key} is not in the lake: {_row(difference.source)}"
    assert difference.source is not None and difference.lake is not None
    values = (
        f"{name} is {_value(difference.source[name])}, in the lake {_value(difference.lake[name])}"
        for name in difference.columns
    )
    return f"{key} differs: {'; '.join(values)}"


def _row(row: Mapping[str, str | None]) -> str:
    return " ".join(f"{name}={_value(text)}" for name, text in row.items())


def _value(text: str | None) -> str:
    if text is None:
        return "NULL"
    return repr(text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}…")
