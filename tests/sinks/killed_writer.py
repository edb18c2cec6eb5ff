"""A program that writes one batch or one load to a lake, for a test that kills it on the way."""

from __future__ import annotations

import sys

from tailrace.sinks.delta import DeltaSink, EmbeddedEngine
from tests.sinks.source import Source, batch_of, load_of

ROWS = 3


def main() -> None:
    """Write the same rows to the lake named on the command line, as it says."""
    lake, what = sys.argv[1:]
    source = Source()
    for row in range(ROWS):
        source.insert(id=row)
    sink = DeltaSink(lake, engine=EmbeddedEngine())
    if what == "load":
        sink.load(load_of(1, source), source.base())
    else:
        sink.write(batch_of(1, source.take()))
    sink.close()


if __name__ == "__main__":
    main()
