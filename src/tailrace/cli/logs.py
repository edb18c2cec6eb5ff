"""What a run tells on stderr: a time, an event phrase, key=value pairs.

Our own loggers speak from INFO on (DEBUG with `--verbose`), everybody else's from WARNING on, so
that the lines read as the story of the run. The bridge to Spark is silent: it tells of every error
that a batch raises, which the stream itself tells once and in its own words.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

_OURS: Final = "tailrace"
_BRIDGE: Final = "py4j"


class _LineFormatter(logging.Formatter):
    """`10:15:02 segment sealed bytes=8388608`; the level only where it is not INFO."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{self.formatTime(record, '%H:%M:%S')} {level}{record.getMessage()}"
        if record.exc_info and is_verbose():
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def configure(*, verbose: bool) -> None:
    """Send log lines to stderr; may be called again, to become verbose."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(_OURS).setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger(_BRIDGE).setLevel(logging.WARNING if verbose else logging.CRITICAL)


def is_verbose() -> bool:
    """Whether `--verbose` was given."""
    return logging.getLogger(_OURS).getEffectiveLevel() <= logging.DEBUG
