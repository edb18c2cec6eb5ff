"""What a pipeline does beside its streams goes on, whatever goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import cast

import pytest
from pyspark.errors import PySparkRuntimeError

from tailrace.compaction import Compactor, Outcome
from tailrace.errors import LogError
from tailrace.model import Lsn
from tailrace.streams.upkeep import Upkeep


class Failing:
    """Four tables to fold, the first three of which cannot be."""

    def __init__(self) -> None:
        self.folded: list[str] = []

    def due(self, *, interval_s: float, now_s: float) -> set[str]:
        return {"public.a", "public.b", "public.bad", "public.c"}

    def compact(self, tables: Container[str]) -> list[Outcome]:
        if "public.a" in tables:
            raise PySparkRuntimeError("a worker died\nand left a long story")
        if "public.b" in tables:
            raise LogError("a part is damaged")
        if "public.bad" in tables:
            raise ValueError("nobody has thought of this")
        self.folded.append("public.c")
        return [Outcome("public.c", Lsn(16), 1)]


def test_table_that_cannot_be_folded_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    failing = Failing()
    upkeep = Upkeep(cast(Compactor, failing), interval_s=1.0)
    for _ in range(2):
        upkeep.turn(0.0)
    assert failing.folded == ["public.c"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "base not folded table=public.a reason=a worker died",
        "base not folded table=public.b reason=a part is damaged",
        "base not folded table=public.bad reason=nobody has thought of this",
    ]
