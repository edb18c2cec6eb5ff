"""Sinks by the name of their type: one line for each in `_OPENERS`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from pyspark.sql import SparkSession

from tailrace.errors import ConfigError
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.delta import DeltaSink, EmbeddedEngine, Engine, Mode
from tailrace.sinks.delta.spark import SparkEngine, delta_is_available
from tailrace.sinks.memory import MemorySink
from tailrace.sinks.sink import Sink


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a sink may use of the process it runs in."""

    session: SparkSession | None
    out: TextIO


def open_sink(
    options: Mapping[str, str], *, session: SparkSession | None = None, out: TextIO | None = None
) -> Sink:
    """The sink that the options describe; raises ConfigError.

    `type` says which: `delta` (`path`; `mode`: upsert or append; `engine`: auto, deltalake or
    delta-spark), `console`, `memory`. A local path is absolute. `out` is where the console sink
    writes, by default to standard output.
    """
    wanted = options.get("type", "")
    opener = _OPENERS.get(wanted)
    if opener is None:
        raise ConfigError(f"unknown sink type {wanted!r}", hint=f"one of {', '.join(_OPENERS)}")
    open_it, known = opener
    unknown = [name for name in options if name not in {"type", *known}]
    if unknown:
        raise ConfigError(f"a {wanted} sink has no option {unknown[0]}", hint=f"options: {known}")
    return open_it(options, _Surroundings(session, out or sys.stdout))


def _open_delta(options: Mapping[str, str], around: _Surroundings) -> Sink:
    if "path" not in options:
        raise ConfigError("a delta sink needs a path", hint="e.g. path: ./lake")
    mode = options.get("mode", Mode.UPSERT)
    if mode not in list(Mode):
        raise ConfigError(f"unknown delta mode {mode!r}", hint=f"one of {', '.join(Mode)}")
    engine = _engine(options.get("engine", "auto"), around.session)
    return DeltaSink(options["path"], engine=engine, mode=Mode(mode))


def _engine(wanted: str, session: SparkSession | None) -> Engine:
    """Delta on Spark where it is set up, unless the options say otherwise."""
    match wanted:
        case "deltalake":
            return EmbeddedEngine()
        case "auto" if session is None or not delta_is_available(session):
            return EmbeddedEngine()
        case "auto" | "delta-spark" if session is not None and delta_is_available(session):
            return SparkEngine(session)
        case "delta-spark":
            raise ConfigError(
                "Delta on Spark is not set up in this session",
                hint="add the io.delta:delta-spark package, its session extension and its catalog"
                " to the Spark settings, or use engine: deltalake",
            )
        case _:
            raise ConfigError(
                f"unknown delta engine {wanted!r}", hint="auto, deltalake or delta-spark"
            )


_Opener = Callable[[Mapping[str, str], _Surroundings], Sink]

_OPENERS: Final[dict[str, tuple[_Opener, tuple[str, ...]]]] = {
    "delta": (_open_delta, ("path", "mode", "engine")),
    "console": (lambda _, around: ConsoleSink(around.out), ()),
    "memory": (lambda *_: MemorySink(), ()),
}
