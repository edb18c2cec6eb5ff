"""Sessions on the source, every one with the same settings.

Values travel as text, so a setting that changes a value's text (DateStyle, TimeZone, bytea_output,
…) is pinned on every connection, the replication one included: what a snapshot reads and what the
stream sends are the same bytes, whatever a role, a database or the environment has set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import psycopg
from psycopg import pq, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from tailrace.errors import ConfigError, SourceError
from tailrace.postgres.deadline import TimedConnection
from tailrace.postgres.sqlstate import connect_error, source_error

__all__ = [
    "APPLICATION_NAME",
    "NO_ENCODING",
    "PINNED",
    "Connection",
    "connect",
    "connect_error",
    "conninfo",
    "pin",
    "redact_dsn",
    "source_error",
    "startup_options",
]

Connection: TypeAlias = psycopg.Connection[TupleRow]

APPLICATION_NAME: Final = "tailrace"
"""By this a session is known as ours, in pg_stat_activity and to synchronous_standby_names."""

CONNECT_TIMEOUT_S: Final = 10

_KEEPALIVES: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "5",
    # There are none while what was sent is not acknowledged: in the middle of a COPY, for instance.
    "tcp_user_timeout": "90000",
}
"""A server that is gone while we wait for its answer is noticed in a minute or two."""

NO_ENCODING: Final = "SQL_ASCII"
"""The encoding of a database in which a text is whatever bytes were put in."""

PINNED: Final[Mapping[str, str]] = MappingProxyType(
    {
        # The text of values.
        "client_encoding": "UTF8",
        "DateStyle": "ISO, YMD",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "extra_float_digits": "3",
        "bytea_output": "hex",
        "lc_monetary": "C",
        # Names are always qualified, so nobody can put an object of theirs before one of ours. Both
        # settings also change the text of a regclass.
        "search_path": "",
        "quote_all_identifiers": "off",
        # A row that a policy would hide must be an error, not a missing row.
        "row_security": "off",
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        # A drain must be on this server's disk before it is logged. Standbys are not waited for: a
        # commit that does keeps its locks, and no timeout ends it.
        "synchronous_commit": "local",
        # Nothing of ours may hold a lock or wait for one for long; nor be ended for being idle.
        "lock_timeout": "5s",
        "statement_timeout": "60s",
        "idle_in_transaction_session_timeout": "60s",
        "idle_session_timeout": "0",
    }
)

# All that psycopg reads as text; 0 stands for the types that it does not know.
_TEXT_TYPES: Final = (0, "text", "name", "varchar", "bpchar", '"char"')

_SETTING_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# What libpq's splitter (pg_split_opts) takes for the end of a word, and its escape.
_SPECIAL: Final = re.compile(r"[\s\\]", re.ASCII)


def startup_options(settings: Mapping[str, str]) -> str:
    r"""The settings as libpq's `options` parameter.

    >>> startup_options({"search_path": "", "DateStyle": "ISO, YMD"})
    '-c search_path= -c DateStyle=ISO,\\ YMD'
    """
    for name in settings:
        if _SETTING_NAME.fullmatch(name) is None:
            raise ValueError(f"not the name of a setting: {name!r}")
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", value)


def conninfo(
    dsn: str,
    *,
    application_name: str = APPLICATION_NAME,
    settings: Mapping[str, str] = MappingProxyType({}),
    replication: bool = False,
) -> str:
    """The full connection string: the user's, then `PINNED`, then `settings`; later ones win.

    Holds the password: never show it. Raises ConfigError.
    """
    params = _parse(dsn)
    options = [params.get("options"), startup_options({**PINNED, **settings})]
    forced: dict[str, str] = {
        "options": " ".join(option for option in options if option),
        "application_name": application_name,
        # As a parameter of its own it would win over `options`.
        "client_encoding": PINNED["client_encoding"],
    }
    if replication:
        forced["replication"] = "database"
    return make_conninfo(
        "", **{"connect_timeout": str(CONNECT_TIMEOUT_S), **_KEEPALIVES, **params, **forced}
    )


def connect(
    dsn: str,
    *,
    application_name: str = APPLICATION_NAME,
    settings: Mapping[str, str] = MappingProxyType({}),
    answer_s: float | None = None,
) -> Connection:
    """An autocommit session, which waits no longer than `answer_s` for any answer; raises
    SourceError, or ConfigError if `dsn` cannot be read.
    """
    target = conninfo(dsn, application_name=application_name, settings=settings)
    try:
        conn = TimedConnection.connect(target, autocommit=True)
    except psycopg.Error as exc:
        raise connect_error(str(exc), target) from exc
    conn.answer_s = answer_s
    try:
        pin(conn.pgconn)
    except SourceError:
        conn.close()
        raise
    if conn.info.parameter_status("server_encoding") == NO_ENCODING:
        for kind in _TEXT_TYPES:
            conn.adapters.register_loader(kind, _AnyText)
    return conn


class _AnyText(Loader):
    """Text whatever its bytes are: one odd name must not hide all other tables."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", "replace")


def pin(pgconn: pq.abc.PGconn) -> None:
    """Set again what the environment has overridden, and the encoding if the database has none.

    libpq sends PGTZ and PGDATESTYLE beside `options`, and the server lets them win. Both are
    settings that the server reports, so a session without them costs no round trip. A database of
    encoding SQL_ASCII may hold any bytes, and Postgres refuses to send those that are not of the
    client's encoding: only a client that has none gets them all.
    """
    for name, value in {**PINNED, "client_encoding": _client_encoding(pgconn)}.items():
        reported = pgconn.parameter_status(name.encode())
        if reported is None or reported == value.encode():
            continue
        statement = sql.SQL("SET {} TO {}").format(sql.Identifier(name), sql.Literal(value))
        result = pgconn.exec_(statement.as_bytes())
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise source_error(psycopg.errors.error_from_result(result))


def _client_encoding(pgconn: pq.abc.PGconn) -> str:
    has_none = pgconn.parameter_status(b"server_encoding") == NO_ENCODING.encode()
    return NO_ENCODING if has_none else PINNED["client_encoding"]


def redact_dsn(dsn: str) -> str:
    """The connection string for people: every secret replaced by `***`.

    >>> redact_dsn("postgresql://ann:hunter2@db/shop")
    'user=ann password=*** dbname=shop host=db'
    """
    try:
        _parse(dsn)
    except ConfigError:
        return "(unreadable)"
    # libpq itself marks the options that are secrets.
    shown = {
        option.keyword.decode(): "***" if option.dispchar == b"*" else option.val.decode()
        for option in pq.Conninfo.parse(dsn.encode())
        if option.val is not None
    }
    return make_conninfo("", **shown)


def _parse(dsn: str) -> dict[str, str]:
    # The cause is left out on purpose: libpq repeats the unreadable part, which may be the
    # password.
    hint = "postgresql://user:password@host:5432/database; percent-encode @ : / ? # in the password"
    try:
        params = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise ConfigError("source.dsn is not a connection string", hint=hint) from None
    # In a URI the rest of a password with an unescaped @ is read as host and port, and so gets into
    # messages.
    if any("@" in str(params.get(name) or "") for name in ("host", "port")):
        raise ConfigError("source.dsn has an @ in its host or port", hint=hint)
    # libpq would say so too late: only when the host is looked up, and as if that were at fault.
    if not re.fullmatch(r"[0-9,\s]*", str(params.get("port") or "")):
        raise ConfigError("source.dsn has a port that is no number", hint=hint)
    return {key: str(value) for key, value in params.items() if value is not None}
