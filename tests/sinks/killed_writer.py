"""A program that tells a lake a story of batches, a load and changes of shape, for a test that
kills it on the way. Told again from its beginning, the story ends in the same rows.
"""

from __future__ import annotations

import json

from tailrace.model import PgType
from tailrace.sinks import Sink, open_sink
from tailrace.sinks.delta import DeltaOptions, DeltaSink, EmbeddedEngine, Mode
from tests.sinks.source import Source, batch_of, load_of

LAST = 23
"""The number of the last batch; most are small."""


def tell(sink: Sink) -> Source:
    """The whole story; the source is left as it ends."""
    source = Source()
    source.insert(id=1, doc="large", n=1)
    source.insert(id=2, n=2)
    sink.write(batch_of(1, source.take()))
    source.update(1, id=3, unchanged=["doc"])
    source.delete(2)
    sink.write(batch_of(2, source.take()))
    source.add_column("extra")
    source.retype_column("n", PgType.INT8)
    source.update(3, n=1 << 40, extra="e", unchanged=["doc"])
    sink.write(batch_of(3, source.take()))
    source.insert(id=4)
    source.take()
    load, base = load_of(5, source), source.base()
    source.insert(id=5)
    since = source.take()
    sink.write(batch_of(4, since))
    sink.load(load, base)
    # What the table had from after the load comes again.
    sink.write(batch_of(6, since))
    for sequence in range(7, LAST):
        source.insert(id=100 + sequence, n=sequence)
        sink.write(batch_of(sequence, source.take()))
    source.truncate()
    source.insert(id=6, doc="last")
    sink.write(batch_of(LAST, source.take()))
    return source


def main(lake: str, mode: str) -> None:
    """Tell it to a lake, in a mode."""
    options = DeltaOptions(mode=Mode(mode), compact_after=18)
    sink = DeltaSink(lake, engine=EmbeddedEngine(), options=options)
    tell(sink)
    sink.close()


def tell_to(options: str) -> None:
    """Tell it to the sink that has these options."""
    sink = open_sink(json.loads(options))
    tell(sink)
    sink.close()
