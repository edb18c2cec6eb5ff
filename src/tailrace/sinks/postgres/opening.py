"""A target database as its options describe it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr

from tailrace.errors import ConfigError
from tailrace.postgres.session import conninfo
from tailrace.sinks.columns import Mode
from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.option_values import count
from tailrace.sinks.postgres.options import PostgresOptions
from tailrace.sinks.postgres.sink import PostgresSink
from tailrace.storage import Store

OPTIONS: Final = ("dsn", "schema", "mode", "dead_letter_count", "dead_letter_bytes")
MODES: Final = (Mode.UPSERT, Mode.APPEND)


def open_postgres(
    options: Mapping[str, object], *, store: Store | None = None, stream: str = ""
) -> PostgresSink:
    """Raises ConfigError; nothing is connected yet."""
    return PostgresSink(postgres_options(options), store=store, stream=stream)


def postgres_options(options: Mapping[str, object]) -> PostgresOptions:
    """The options, checked. Raises ConfigError, which never shows the dsn."""
    dsn = options.get("dsn")
    text = dsn.get_secret_value() if isinstance(dsn, SecretStr) else dsn
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("a postgres sink needs a dsn", hint='e.g. dsn: "${TARGET_URL}"')
    try:
        conninfo(text)
    except ConfigError as error:
        message = str(error).replace("source.dsn", "dsn of a postgres sink")
        raise ConfigError(message, hint=error.hint) from None
    mode = postgres_mode(options)
    schema = options.get("schema")
    if schema is not None and (not isinstance(schema, str) or not schema):
        raise ConfigError("schema of a postgres sink must be a name", hint="e.g. schema: copy")
    known = LetterLimits()
    letters = LetterLimits(
        letter_count=count(options, "dead_letter_count", known.letter_count),
        bytes_max=count(options, "dead_letter_bytes", known.bytes_max),
    )
    return PostgresOptions(text, schema, mode, letters)


def postgres_mode(options: Mapping[str, object]) -> Mode:
    """What the tables of such a target hold; raises ConfigError."""
    mode = str(options.get("mode", Mode.UPSERT))
    if mode not in MODES:
        raise ConfigError(f"unknown postgres mode {mode!r}", hint=f"one of {', '.join(MODES)}")
    return Mode(mode)
