"""Durations, sizes and counts as people write them: `7d`, `500ms`, `8MiB`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)")

_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATION_MAX: Final = timedelta(days=36_500)


def parse_duration(text: str) -> timedelta:
    """Read a number and one of ms, s, m, h, d; raises ValueError.

    >>> parse_duration("7d"), parse_duration("1.5s")
    (datetime.timedelta(days=7), datetime.timedelta(seconds=1, microseconds=500000))
    """
    number, unit = _split(text, "a duration")
    if unit not in _MILLISECONDS:
        raise ValueError("is not a duration: write a number and ms, s, m, h or d, such as 30s")
    if number * _MILLISECONDS[unit] > _DURATION_MAX / timedelta(milliseconds=1):
        raise ValueError("is longer than 36500d")
    duration = timedelta(milliseconds=number * _MILLISECONDS[unit])
    if not duration:
        raise ValueError("must be longer than nothing")
    return duration


def parse_size(text: str) -> int:
    """Read a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB as bytes; raises ValueError.

    >>> parse_size("8MiB"), parse_size("1.5 kB")
    (8388608, 1500)
    """
    number, unit = _split(text, "a size")
    if unit.lower() not in _BYTES:
        raise ValueError("is not a size: write a number and B, kB, MB, GB, KiB, MiB or GiB")
    size = int(number * _BYTES[unit.lower()])
    if size < 1 or size >= 2**63:
        raise ValueError("must be at least one byte and less than 8 EiB")
    return size


def show_size(size: float) -> str:
    """Bytes for people, in powers of 1024.

    >>> show_size(512), show_size(8388608), show_size(1536)
    ('512 B', '8.0 MiB', '1.5 KiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def show_duration(duration_s: float) -> str:
    """Seconds for people.

    >>> show_duration(0.25), show_duration(5), show_duration(7500)
    ('250 ms', '5.0 s', '2.1 h')
    """
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    for unit, seconds in (("s", 60), ("min", 60), ("h", 24)):
        if duration_s < seconds:
            return f"{duration_s:.1f} {unit}"
        duration_s /= seconds
    return f"{duration_s:.1f} d"


def show_count(count: int, one: str, many: str) -> str:
    """So many of something.

    >>> show_count(1, "row waits", "rows wait"), show_count(2000, "row waits", "rows wait")
    ('1 row waits', '2,000 rows wait')
    """
    return f"{count:,} {one if count == 1 else many}"


def _split(text: str, what: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"is not {what}: write a number and a unit")
    return float(match[1]), match[2]
