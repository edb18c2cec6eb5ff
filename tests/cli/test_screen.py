"""The demo's screen: a pure drawing of a frame, live on a terminal and in lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tailrace.cli.screen import DemoFrame, Screen, TableRows, draw, line

FRAME = DemoFrame(
    phase="streaming",
    elapsed_s=12.4,
    transactions=1234,
    changes=5678,
    changes_per_s=456.7,
    lag_ms=321.0,
    segments=42,
    log_bytes=3 << 20,
    wal_retained_bytes=16 << 20,
    tables=(TableRows("orders", 1000, 998), TableRows("products", None, None)),
)


def drawn(frame: DemoFrame) -> str:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(draw(frame))
    return captured.get()


@pytest.mark.parametrize(
    "shown",
    [
        "streaming",
        "12 s",
        "1,234",
        "5,678",
        "457",
        "321 ms",
        "42",
        "3.0 MiB",
        "16.0 MiB",
        "orders",
        "998",
    ],
)
def test_the_screen_has_every_number(shown: str) -> None:
    assert shown in drawn(FRAME)


def test_what_is_not_known_is_a_dash() -> None:
    unknown = replace(FRAME, lag_ms=None, wal_retained_bytes=None, tables=())
    assert "lag=- " in line(unknown)
    assert "wal_retained=-" in line(unknown)
    assert drawn(unknown).count("  -  ") == 2


def test_trouble_is_shown() -> None:
    text = "connection refused [retry]"
    assert text in drawn(replace(FRAME, trouble=text))
    assert text in line(replace(FRAME, trouble=text))


def test_a_line_is_one_line() -> None:
    assert line(replace(FRAME, lag_ms=1500.0)) == (
        "  12s streaming: changes=5,678 rate=457/s lag=1.5 s segments=42 log=3.0 MiB"
        " wal_retained=16.0 MiB source/lake orders=1,000/998 products=-/-"
    )


def test_without_a_terminal_lines_come_every_few_seconds_and_at_each_phase() -> None:
    out = io.StringIO()
    now = 100.0
    with Screen(Console(file=out, width=20), clock=lambda: now) as screen:
        for _ in range(25):
            screen.show(FRAME)
            now += 0.25
        screen.show(replace(FRAME, phase="at rest"))
        screen.show(replace(FRAME, phase="at rest"))
    lines = out.getvalue().splitlines()
    assert [each.split()[1] for each in lines] == ["streaming:"] * 3 + ["at"]


def test_on_a_terminal_the_screen_is_redrawn() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with Screen(console) as screen:
        screen.show(FRAME)
        screen.show(replace(FRAME, changes=6789))
    assert "5,678" in out.getvalue()
    assert "6,789" in out.getvalue()
    assert "\x1b[" in out.getvalue()
