"""Sinks by the name of their type: one line for each in `_OPENERS`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.delta.opening import OPTIONS, open_delta
from tailrace.sinks.memory import MemorySink
from tailrace.sinks.parquet.opening import OPTIONS as PARQUET_OPTIONS
from tailrace.sinks.parquet.opening import open_parquet
from tailrace.sinks.postgres.opening import OPTIONS as POSTGRES_OPTIONS
from tailrace.sinks.postgres.opening import open_postgres
from tailrace.sinks.queue import SENDERS, open_queue
from tailrace.sinks.queue.options import OPTIONS as QUEUE_OPTIONS
from tailrace.sinks.sink import Sink
from tailrace.storage import Store


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a sink may use of the process it runs in, and whose it is."""

    session: SparkSession | None
    out: TextIO
    store: Store | None
    stream: str


def open_sink(
    options: Mapping[str, object],
    *,
    session: SparkSession | None = None,
    out: TextIO | None = None,
    store: Store | None = None,
    stream: str = "",
) -> Sink:
    """The sink that the options describe; raises ConfigError.

    `type` says which: `delta` (`path`; `engine`: auto, deltalake or delta-spark; and what
    `DeltaOptions` has), `postgres` (`dsn`, `schema`, `mode`), `parquet` (`path`, `partition_by`),
    `webhook`, `kafka`, `kinesis`, `console`, `memory`. A local path is absolute. `out` is where the
    console sink writes, by default to standard output. `store`, which holds the log, and `stream`
    are needed by those that keep something of the stream beside the log.
    """
    wanted = str(options.get("type", ""))
    opener = _OPENERS.get(wanted)
    if opener is None:
        raise ConfigError(f"unknown sink type {wanted!r}", hint=f"one of {', '.join(_OPENERS)}")
    open_it, known = opener
    unknown = [name for name in options if name not in {"type", *known}]
    if unknown:
        raise ConfigError(
            f"a {wanted} sink has no option {unknown[0]}", hint=f"options: {', '.join(known)}"
        )
    return open_it(options, _Surroundings(session, out or sys.stdout, store, stream))


_Opener = Callable[[Mapping[str, object], _Surroundings], Sink]


def _queue(kind: str) -> _Opener:
    return lambda options, around: open_queue(
        kind, options, store=around.store, stream=around.stream, session=around.session
    )


_OPENERS: Final[dict[str, tuple[_Opener, tuple[str, ...]]]] = {
    "delta": (lambda options, around: open_delta(options, around.session), OPTIONS),
    "postgres": (lambda options, _: open_postgres(options), POSTGRES_OPTIONS),
    "parquet": (lambda options, _: open_parquet(options), PARQUET_OPTIONS),
    "console": (lambda _, around: ConsoleSink(around.out), ()),
    "memory": (lambda *_: MemorySink(), ()),
    **{kind: (_queue(kind), (*known, *QUEUE_OPTIONS)) for kind, (_, known) in SENDERS.items()},
}
