"""A program that writes one batch to a lake, for a test that kills it on the way."""

from __future__ import annotations

import sys

from tailrace.sinks.delta import DeltaSink, EmbeddedEngine
from tests.sinks.source import Source, batch_of

ROWS = 3


def main() -> None:
    """Write the same batch to the lake named on the command line."""
    source = Source()
    for row in range(ROWS):
        source.insert(id=row)
    sink = DeltaSink(sys.argv[1], engine=EmbeddedEngine())
    sink.write(batch_of(1, source.take()))
    sink.close()


if __name__ == "__main__":
    main()
