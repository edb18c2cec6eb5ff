"""Do the options of a queue make sense together? The queue itself is not asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.errors import ConfigError
from tailrace.postgres.finding import Finding, blocker
from tailrace.sinks.queue.opening import require_other_queue


def check_queue(kind: str, options: Mapping[str, object], subject: str) -> Iterator[Finding]:
    """What stands in the way."""
    try:
        require_other_queue(kind, options)
    except ConfigError as error:
        yield blocker(subject, str(error), error.hint)
