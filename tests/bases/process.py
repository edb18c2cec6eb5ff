"""Takes bases as a process of its own."""

from __future__ import annotations

import logging
import sys

import pytest

from tailrace.bases import stretch
from tailrace.storage import open_store
from tests.bases.taking import take


def main(dsn: str, log_url: str) -> None:
    """Of every table in want of one."""
    logging.basicConfig(level=logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "PAGES_MIN", 2)
        patch.setattr(stretch, "PAGES_MAX", 2)
        results = take(dsn, open_store(log_url))
    sys.exit(any(result.error is not None for result in results))
