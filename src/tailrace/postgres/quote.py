"""The one place where names become SQL.

Nothing else joins a name to a statement. Names that we choose are of `[a-z0-9_]`, which Postgres
allows in a slot's name; names from the catalog are quoted by psycopg. A statement with a quoted
name takes no parameters: psycopg would read a % of the name as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from psycopg import sql

from tailrace.errors import ConfigError

_PREFIX: Final = "tailrace_"
_INSERTS_SUFFIX: Final = "_inserts"
_BUFFERS_SUFFIX: Final = "_buffers"
_SHADOW_SUFFIX: Final = "_shadow"
_RESERVED_SUFFIXES: Final = (_BUFFERS_SUFFIX, _INSERTS_SUFFIX, _SHADOW_SUFFIX)
_NAME_BYTES_MAX: Final = 63
SOURCE_NAME_CHARACTERS_MAX: Final = _NAME_BYTES_MAX - len(_PREFIX) - len(_BUFFERS_SUFFIX)

_SOURCE_NAME: Final = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class SourceNames:
    """What a source is called inside Postgres.

    >>> SourceNames.of("main").slot
    'tailrace_main'
    >>> SourceNames.of("main").buffers
    'tailrace_main_buffers'
    """

    slot: str
    publication: str
    inserts: str
    """The publication of tables of which only inserts are captured."""

    buffers: str
    """The publication of the buffers that triggers write to."""

    @property
    def shadow(self) -> str:
        """The publication of a table whose two captures are compared."""
        return self.publication + _SHADOW_SUFFIX

    @classmethod
    def of(cls, source_name: str) -> Self:
        """The names that belong to `source.name`; raises ConfigError."""
        if _SOURCE_NAME.fullmatch(source_name) is None:
            raise ConfigError(
                f"source.name {source_name!r} cannot name a replication slot",
                hint="use lower-case letters, digits and underscores only",
            )
        if len(source_name) > SOURCE_NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"source.name {source_name!r} is too long",
                hint=f"use at most {SOURCE_NAME_CHARACTERS_MAX} characters",
            )
        if source_name.endswith(_RESERVED_SUFFIXES):
            raise ConfigError(
                f"source.name {source_name!r} has an ending that is reserved",
                hint=f"choose one that does not end in {' or '.join(_RESERVED_SUFFIXES)}",
            )
        name = _PREFIX + source_name
        return cls(name, name, name + _INSERTS_SUFFIX, name + _BUFFERS_SUFFIX)


def identifier(name: str) -> sql.Identifier:
    """One name, quoted."""
    return sql.Identifier(name)


def qualified(schema: str, table: str) -> sql.Identifier:
    """A table's name, both parts quoted."""
    return sql.Identifier(schema, table)


def statement(template: str, *names: sql.Identifier) -> sql.Composed:
    """`template` with each `{}` replaced by a quoted name."""
    return sql.SQL(template).format(*names)


def shown(template: str, *names: sql.Identifier) -> str:
    """The same, as text for a person to paste."""
    return statement(template, *names).as_string()
