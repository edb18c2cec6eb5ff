"""Values of a sink's options, checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from tailrace.errors import ConfigError


def one_of(options: Mapping[str, object], name: str, known: tuple[str, ...]) -> str:
    """The first is the default."""
    value = str(options.get(name, known[0]))
    if value not in known:
        raise ConfigError(f"{name} of a sink is {value!r}", hint=f"one of {', '.join(known)}")
    return value


def count(options: Mapping[str, object], name: str, otherwise: int) -> int:
    """A number above zero."""
    value = options.get(name, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} of a sink must be a number above zero")
    return value


def seconds(options: Mapping[str, object], name: str, otherwise: float) -> float:
    """A time, as a number of seconds or as the configuration reads it."""
    value = options.get(name, otherwise)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} of a sink must be a time above zero")
    return float(value)


def text(options: Mapping[str, object], name: str) -> str:
    """A text that must be there."""
    value = options.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"a sink needs {name}")
    return value
