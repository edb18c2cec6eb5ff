"""The databases and roles of the tests of `postgres`, and a database with the control schemas."""

from __future__ import annotations

import pytest

from tailrace.control.schema import migrate
from tailrace.postgres.session import Connection
from tests.postgres.conftest import admin, app, capture, capture_dsn, source

__all__ = ["admin", "app", "capture", "capture_dsn", "controlled", "source"]


@pytest.fixture
def controlled(capture: Connection) -> Connection:
    """The session of the role that has made the control schemas."""
    migrate(capture)
    return capture
