"""Sinks by the name of their type: one line for each in `_OPENERS`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.delta.opening import OPTIONS, delta_mode, open_delta
from tailrace.sinks.memory import MemorySink
from tailrace.sinks.parquet.opening import OPTIONS as PARQUET_OPTIONS
from tailrace.sinks.parquet.opening import open_parquet
from tailrace.sinks.parquet.sink import ParquetSink
from tailrace.sinks.postgres.opening import OPTIONS as POSTGRES_OPTIONS
from tailrace.sinks.postgres.opening import open_postgres, postgres_mode
from tailrace.sinks.queue import SENDERS, open_queue
from tailrace.sinks.queue.options import OPTIONS as QUEUE_OPTIONS
from tailrace.sinks.queue.sink import QueueSink
from tailrace.sinks.sink import Holds, Sink
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
    open_it, known, _ = _opener(wanted)
    unknown = [name for name in options if name not in {"type", *known}]
    if unknown:
        raise ConfigError(
            f"a {wanted} sink has no option {unknown[0]}", hint=f"options: {', '.join(known)}"
        )
    return open_it(options, _Surroundings(session, out or sys.stdout, store, stream))


def held_by(options: Mapping[str, object]) -> Holds:
    """What the sink that the options describe has of a table, without opening it; raises
    ConfigError.
    """
    _, _, holds = _opener(str(options.get("type", "")))
    return holds(options)


def _opener(wanted: str) -> tuple[_Opener, tuple[str, ...], _HeldBy]:
    opener = _OPENERS.get(wanted)
    if opener is None:
        raise ConfigError(f"unknown sink type {wanted!r}", hint=f"one of {', '.join(_OPENERS)}")
    return opener


_HeldBy = Callable[[Mapping[str, object]], Holds]

_Opener = Callable[[Mapping[str, object], _Surroundings], Sink]


def _queue(kind: str) -> _Opener:
    return lambda options, around: open_queue(
        kind, options, store=around.store, stream=around.stream, session=around.session
    )


_OPENERS: Final[dict[str, tuple[_Opener, tuple[str, ...], _HeldBy]]] = {
    "delta": (
        lambda options, around: open_delta(options, around.session),
        OPTIONS,
        lambda options: delta_mode(options).holds,
    ),
    "postgres": (
        lambda options, around: open_postgres(options, store=around.store, stream=around.stream),
        POSTGRES_OPTIONS,
        lambda options: postgres_mode(options).holds,
    ),
    "parquet": (
        lambda options, _: open_parquet(options),
        PARQUET_OPTIONS,
        lambda _: ParquetSink.holds,
    ),
    "console": (lambda _, around: ConsoleSink(around.out), (), lambda _: ConsoleSink.holds),
    "memory": (lambda *_: MemorySink(), (), lambda _: MemorySink.holds),
    **{
        kind: (_queue(kind), (*queue.options, *QUEUE_OPTIONS), lambda _: QueueSink.holds)
        for kind, queue in SENDERS.items()
    },
}
