"""JSON that any parser reads, whatever a database holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from tailrace.cli.json_text import json_text
from tailrace.model import Lsn, Offset


@dataclass(frozen=True, slots=True)
class Value:
    at: Lsn
    rows: tuple[int, ...]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**60, 2**60),
        (0.1, 0.1),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ("O'Neil 🦊", "O'Neil 🦊"),
        (b"\x00\xff", "\\x00ff"),
        (Decimal("1.10"), "1.10"),
        (date(2026, 1, 15), "2026-01-15"),
        (datetime(2026, 1, 15, tzinfo=UTC), "2026-01-15T00:00:00+00:00"),
        (Lsn(0x16B3748), "0/16B3748"),
        (Offset(Lsn(0x16B3748), 3), "0/16B3748:3"),
        ({1: [b"a"]}, {"1": ["\\x61"]}),
        (Value(Lsn(1), (1, 2)), {"at": "0/1", "rows": [1, 2]}),
    ],
)
def test_every_value_reads_back(value: object, expected: object) -> None:
    assert json.loads(json_text(value)) == expected
