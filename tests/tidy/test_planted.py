"""The bugs that `make mutants` plants can be planted: a bug whose place has gone proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import EVERY
from tests.planted import Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_a_planted_bug_has_one_place_and_tests_that_are_there(mutant: Mutant) -> None:
    text = (ROOT / "src/tailrace" / mutant.path).read_text()
    assert text.count(mutant.before) == 1
    for test in mutant.tests:
        path, _, name = test.partition("::")
        name = name.partition("[")[0].rpartition("::")[2]
        assert name in (ROOT / path).read_text()
