"""Databases of both versions at hand."""

from __future__ import annotations

import pytest

from tests.server import VERSIONS


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def version(request: pytest.FixtureRequest) -> int:
    """Every database here is one of each version."""
    return int(request.param)
