"""The kinds of value that the configuration holds: what each accepts, and how it says no.

A refusal is a ValueError whose text goes on after the name of the key; what follows its first ": "
is the hint. No refusal quotes the value.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr

from tailrace.cli.quantity import parse_duration, parse_size
from tailrace.errors import ConfigError
from tailrace.postgres.pattern import TablePattern
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.session import conninfo
from tailrace.where import parse_where

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:.")
_STREAM_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}")


def _duration(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else _without_unit(value, "30s")


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else _without_unit(value, "64MiB")


def _without_unit(value: object, example: str) -> object:
    if isinstance(value, int | float):
        raise ValueError(f"needs a unit: write {example}, for example")
    return value


def _count(value: object) -> object:
    # pydantic would read `true` as 1.
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def yes_or_no(value: object) -> object:
    """Only true and false; pydantic would also take "no" and 0."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def below_deadlock_timeout(value: timedelta) -> timedelta:
    """A wait of ours must end before Postgres looks for a deadlock, and may then end another's."""
    if not timedelta(milliseconds=1) <= value < timedelta(seconds=1):
        raise ValueError("must be from 1ms to below 1s: Postgres looks for deadlocks after 1s")
    return value


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("must name a table")
    return value


def _some_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("must name a column")
    return value


def _table_pattern(value: str) -> str:
    try:
        TablePattern.parse(value)
    except ConfigError as error:
        raise ValueError(f"is not a table pattern: {error.hint}") from None
    return value


def _where(value: str) -> str:
    try:
        parse_where(value)
    except ConfigError as error:
        raise ValueError(f"{str(error).removeprefix('the where ')}: {error.hint}") from None
    return value


def _source_name(value: str) -> str:
    try:
        SourceNames.of(value)
    except ConfigError as error:
        raise ValueError(f"is not a source's name: {error.hint}") from None
    return value


def _stream_name(value: str) -> str:
    if not _STREAM_NAME.fullmatch(value):
        raise ValueError("is not a stream's name: it may hold only a-z, 0-9, _ and -")
    return value


def _dsn(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError("is empty: leave the key out to use the embedded Postgres")
    return _target_dsn(value)


def _target_dsn(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.strip():
        raise ValueError('is empty: write dsn: "${TARGET_URL}" and set that in the environment')
    try:
        conninfo(text)
    except ConfigError as error:
        raise ValueError(f"is not a connection string: write {error.hint}") from None
    return value


def _schema_name(value: str) -> str:
    if not value or len(value.encode()) > 63:
        raise ValueError("is not a schema's name: it has from 1 to 63 bytes")
    return value


def _path(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty: write a path or a URL")
    return value


def _url(value: str) -> str:
    # A bare path is not guessed at: `s3//bucket` would make a local directory and fill it.
    if not _SCHEME.match(value):
        raise ValueError("is not a URL: write file:path, or s3://bucket/prefix")
    return value


def _master(value: object) -> object:
    return None if value == "none" else value


def _setting(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Count = Annotated[int, BeforeValidator(_count)]
PathOrUrl = Annotated[str, AfterValidator(_path)]
Url = Annotated[str, AfterValidator(_url)]
TablePatternText = Annotated[str, AfterValidator(_table_pattern)]
OptionalTablePatterns = tuple[TablePatternText, ...]
TablePatterns = Annotated[OptionalTablePatterns, AfterValidator(_not_empty)]
Columns = Annotated[tuple[str, ...], AfterValidator(_some_columns)]
Where = Annotated[str, AfterValidator(_where)]
SourceName = Annotated[str, AfterValidator(_source_name)]
StreamName = Annotated[str, AfterValidator(_stream_name)]
Dsn = Annotated[SecretStr, AfterValidator(_dsn)]
TargetDsn = Annotated[SecretStr, AfterValidator(_target_dsn)]
SchemaName = Annotated[str, AfterValidator(_schema_name)]
Master = Annotated[str | None, BeforeValidator(_master)]
Setting = Annotated[str, BeforeValidator(_setting)]
