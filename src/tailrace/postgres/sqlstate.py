"""What Postgres' refusals mean to us.

Once a session exists every error has a SQLSTATE, and that alone decides; texts differ between
versions and languages. While connecting libpq gives only a text, so there, and only there, the text
is read: what is not recognised is passed on as it is. Nothing said here holds a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import SourceError

LOCK_NOT_AVAILABLE: Final = "55P03"
QUERY_CANCELED: Final = "57014"
OBJECT_IN_USE: Final = "55006"
WRONG_STATE: Final = "55000"
UNDEFINED_OBJECT: Final = "42704"
DUPLICATE_OBJECT: Final = "42710"
LIMIT_EXCEEDED: Final = "53400"
INSUFFICIENT_PRIVILEGE: Final = "42501"
SERIALIZATION_FAILURE: Final = "40001"

# Connection, transaction rollback, resources, operator, system: these pass. (SQLSTATE classes)
_PASSING_CLASSES: Final = frozenset({"08", "40", "53", "57", "58"})
_PASSING: Final = frozenset({LOCK_NOT_AVAILABLE, OBJECT_IN_USE, "25P03", "25P04"})
_LASTING: Final = frozenset({LIMIT_EXCEEDED, "57P04"})

_HINTS: Final = {
    INSUFFICIENT_PRIVILEGE: "run `tailrace check`: it lists the rights that are missing",
    LOCK_NOT_AVAILABLE: "another transaction holds a lock; it is tried again",
    QUERY_CANCELED: "the statement was cancelled or ran into statement_timeout",
    "25P03": "the transaction was idle for too long and was rolled back",
    "25P04": "the transaction took longer than transaction_timeout and was rolled back",
    "25006": "point source.dsn at the primary: this server takes no writes",
    "57P01": "the server is shutting down or an operator ended the session",
    "57P03": "the server is starting up or shutting down",
    "57P04": "the database was dropped",
    "53100": "the server's disk is full",
    "53300": "raise max_connections, or close idle sessions",
}


def source_error(exc: psycopg.Error) -> SourceError:
    """Any error of an open session, as ours: by SQLSTATE, one line, no values of rows."""
    state = exc.sqlstate
    if state is None:  # libpq's own words: the session is gone, or was used wrongly
        return SourceError(_one_line(str(exc)), retry=isinstance(exc, psycopg.OperationalError))
    passing = state in _PASSING or (state[:2] in _PASSING_CLASSES and state not in _LASTING)
    message = _one_line(exc.diag.message_primary or str(exc))
    return SourceError(f"{message} ({state})", hint=_HINTS.get(state, ""), retry=passing)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A text of libpq or of the server while connecting, and what to say instead."""

    pattern: re.Pattern[str]
    message: str
    hint: str
    retry: bool = False


def _refusal(pattern: str, message: str, hint: str, *, retry: bool = False) -> _Refusal:
    return _Refusal(re.compile(pattern), message, hint, retry)


_REFUSALS: Final = (
    _refusal(
        "password authentication failed|no password supplied",
        "postgres refused the password of role {user}",
        "set the right password in source.dsn, in PGPASSWORD or in ~/.pgpass",
    ),
    _refusal(
        r'role ".*" does not exist',
        "role {user} does not exist",
        "make the role: CREATE ROLE … LOGIN REPLICATION",
    ),
    _refusal(
        r'database ".*" does not exist',
        "database {dbname} does not exist at {place}",
        "name an existing database in source.dsn",
    ),
    _refusal(
        "pg_hba.conf|authentication failed for user|is not permitted to log in",
        "postgres does not let role {user} in from this host",
        "add a line for this role, host and database to pg_hba.conf, then reload",
    ),
    _refusal(
        "max_wal_senders",
        "all wal senders of {place} are in use",
        "raise max_wal_senders and restart, or end replication connections that nobody needs",
        retry=True,
    ),
    _refusal(
        "too many clients|connection slots are reserved|too many connections",
        "all connections of {place} are in use",
        "raise max_connections, or close idle sessions",
        retry=True,
    ),
    _refusal(
        "to start WAL sender|to start walsender",
        "role {user} may not replicate",
        "grant it: ALTER ROLE … REPLICATION",
    ),
    _refusal(
        "database system is|57P03",
        "postgres at {place} is starting up or shutting down",
        "wait until it accepts connections",
        retry=True,
    ),
    _refusal(
        "unsupported startup parameter",
        "a connection pooler stands before postgres at {place}",
        "point source.dsn at postgres itself: a pooler cannot keep a replication session",
    ),
    _refusal(
        "failed to resolve host|could not translate host name",
        "host {host} is unknown",
        "check the host in source.dsn; a password with @, : or / in it must be percent-encoded",
        retry=True,
    ),
    _refusal(
        "Connection refused|No such file or directory",
        "nothing listens at {place}",
        "start postgres, or correct host and port in source.dsn",
        retry=True,
    ),
    _refusal(
        "timeout expired|timed out|No route to host|Network is unreachable",
        "no answer from {place}",
        "check network and firewall between this host and postgres",
        retry=True,
    ),
    _refusal(
        "invalid response to SSL negotiation|expected authentication request",
        "what listens at {place} is not postgres",
        "correct host and port in source.dsn",
    ),
    _refusal(
        "SSL|certificate",
        "postgres at {place} and this host do not agree on TLS",
        "check sslmode, sslrootcert and the server's certificate",
    ),
    _refusal(
        "server closed the connection|Connection reset|connection is lost|EOF",
        "{place} closed the connection",
        "see the server's log",
        retry=True,
    ),
)


def connect_error(text: str, conninfo: str) -> SourceError:
    """Why connecting failed: `text` is what libpq said, `conninfo` what was asked for."""
    params = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    host = params.get("host") or params.get("hostaddr") or "the local socket"
    facts = {
        "host": host,
        "place": f"{host}:{params.get('port') or 5432}",
        "user": params.get("user") or "(the operating system's user)",
        "dbname": params.get("dbname") or "(named like the role)",
    }
    for refusal in _REFUSALS:
        if refusal.pattern.search(text):
            message = refusal.message.format_map(facts)
            return SourceError(message, hint=refusal.hint, retry=refusal.retry)
    reason = _one_line(text.rpartition("failed: ")[2])
    if params.get("password"):
        reason = reason.replace(params["password"], "***")
    return SourceError(f"cannot connect to {facts['place']}: {reason}", hint="check source.dsn")


def _one_line(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return line[:1].lower() + line[1:]
