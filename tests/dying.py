"""Runs that meet something at a failpoint, within the test's own process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tailrace import failpoint


@contextmanager
def met_at(step: str, act: Callable[[int], None], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Act where a process would be killed: at the step, for the n-th time if it is `name:n`."""
    name, _, count = step.partition(":")
    with patch.context() as armed:
        armed.setattr(failpoint, "_name", name)
        armed.setattr(failpoint, "_left", int(count or 1))
        armed.setattr(os, "_exit", act)
        yield
