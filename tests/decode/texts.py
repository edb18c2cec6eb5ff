"""Hypothesis strategies for the texts that Postgres takes as values, type by type."""

from __future__ import annotations

import json
from typing import Final

from hypothesis import strategies as st

from tests.decode.streams import Draw

Texts = st.SearchStrategy[str]


def strings(size_max: int) -> Texts:
    """Any text that Postgres can hold."""
    return st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=size_max
    )


def integers(low: int, high: int) -> Texts:
    """Whole numbers."""
    return st.integers(low, high).map(str)


def signed(bits: int) -> Texts:
    """Whole numbers of so many bits."""
    return integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def floats(width: int) -> Texts:
    """Any float, also those that are no number."""
    return st.one_of(st.floats(width=32) if width == 32 else st.floats()).map(repr)


def finite() -> Texts:
    """Coordinates."""
    return st.floats(-1e6, 1e6).map(repr)


def decimals(digits: int, scale: int) -> Texts:
    """Numbers of at most so many digits, `scale` of them behind the point."""

    def write(unscaled: int) -> str:
        text = f"{abs(unscaled):0{scale + 1}d}"
        text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
        return f"-{text}" if unscaled < 0 else text

    return st.integers(1 - 10**digits, 10**digits - 1).map(write)


@st.composite
def days(draw: Draw, years: tuple[int, int] = (-4712, 5_874_896)) -> str:
    """Any date that Postgres can hold, and often one of our time."""
    year = draw(st.integers(*years) | st.integers(1, 9999) | st.integers(-2, 2))
    text = f"{abs(year) + (year <= 0):04d}-{draw(st.integers(1, 12)):02d}-"
    return text + f"{draw(st.integers(1, 28)):02d}" + (" BC" if year <= 0 else "")


@st.composite
def clocks(draw: Draw) -> str:
    """Any time of day."""
    parts = [draw(st.integers(0, top)) for top in (23, 59, 59)]
    micros = draw(st.just(0) | st.integers(0, 999_999))
    return "{:02d}:{:02d}:{:02d}".format(*parts) + (f".{micros:06d}" if micros else "")


ZONES: Final = st.sampled_from(["+00", "+05:30", "-08", "+13", "+05:53:28"])


@st.composite
def moments(draw: Draw, *, zoned: bool) -> str:
    """Any date and time that Postgres can hold."""
    day, _, era = draw(days((-4711, 294_275))).partition(" ")
    zone = draw(ZONES) if zoned else ""
    return f"{day} {draw(clocks())}{zone}" + (f" {era}" if era else "")


@st.composite
def intervals(draw: Draw) -> str:
    """Months, days and microseconds with signs of their own."""
    months, span = draw(st.integers(-100_000, 100_000)), draw(st.integers(-10_000, 10_000))
    return f"{months} mons {span} days {draw(st.integers(-(10**15), 10**15))} us"


def documents(texts: Texts) -> Texts:
    """JSON, written in more than one way."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
    values = st.recursive(
        leaves.filter(lambda value: value not in (float("inf"), float("-inf"))),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=6,
    )
    return st.builds(_dump, values, st.sampled_from([None, 1]), st.booleans())


def _dump(value: object, indent: int | None, escaped: bool) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=escaped)


def quoted(text: str | None) -> str:
    """An element of an array or composite literal."""
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@st.composite
def arrays(draw: Draw, elements: Texts) -> str:
    """Empty ones, NULLs, up to three dimensions, and bounds that do not begin at 1."""
    sizes = draw(st.lists(st.integers(1, 3), max_size=3))
    if not sizes:
        return "{}"
    literal = _nest(draw, elements | st.none(), sizes)
    if draw(st.booleans()):
        return literal
    lows = [draw(st.integers(-3, 3)) for _ in sizes]
    bounds = "".join(f"[{low}:{low + n - 1}]" for low, n in zip(lows, sizes, strict=True))
    return f"{bounds}={literal}"


def _nest(draw: Draw, elements: st.SearchStrategy[str | None], sizes: list[int]) -> str:
    if not sizes:
        return quoted(draw(elements))
    return "{" + ",".join(_nest(draw, elements, sizes[1:]) for _ in range(sizes[0])) + "}"


@st.composite
def ranges(draw: Draw, low: Texts, high: Texts) -> str:
    """Bounds in and out, open ends; `low` must not be above `high`."""
    if draw(st.integers(0, 5)) == 0:
        return "empty"
    ends = [draw(end | st.none()) for end in (low, high)]
    first, last = ("" if end is None else quoted(end) for end in ends)
    left, right = draw(st.sampled_from("[(")), draw(st.sampled_from("])"))
    return f"{left}{first},{last}{right}"


def multiranges(of: Texts) -> Texts:
    """None, one or two ranges."""
    return st.lists(of, max_size=2).map(lambda parts: "{" + ",".join(parts) + "}")


def composites(*fields: Texts) -> Texts:
    """Rows, with fields that are NULL."""
    cells = [field.map(quoted) | st.just("") for field in fields]
    return st.tuples(*cells).map(lambda row: "(" + ",".join(row) + ")")
