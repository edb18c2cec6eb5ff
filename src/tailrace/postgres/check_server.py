"""Can this server, with this role, be a source at all? Pure: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from tailrace.postgres.finding import Finding, Severity, blocker, warning
from tailrace.postgres.known_bugs import bugs_of
from tailrace.postgres.quote import identifier, shown
from tailrace.postgres.server import Server

VERSION_MIN: Final = 140000
WAL_KEEP_MB_MIN: Final = 1024

_QUORUM: Final = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_STANDBY: Final = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


def server_findings(
    server: Server, *, application_name: str, is_wal_optional: bool = False
) -> list[Finding]:
    """Everything that concerns no single table. If the WAL is optional, what keeps it from being
    used is no blocker: triggers capture until then.
    """
    wal = [*_wal_level(server), *_role(server), *_limits(server)]
    return [
        *_version(server),
        *_standby(server),
        *(by_triggers(wal) if is_wal_optional else wal),
        *_synchronous(server, application_name),
        *_wal_kept(server),
        *_surroundings(server),
    ]


def _version(server: Server) -> Iterator[Finding]:
    if server.version_num < VERSION_MIN:
        yield blocker(
            "server", f"postgres {server.version} is too old", "upgrade to postgres 14 or later"
        )
    for what, fixed in bugs_of(server.version_num):
        yield warning("server", f"postgres {server.version} {what}", f"update to {fixed}")


def by_triggers(findings: Iterable[Finding]) -> list[Finding]:
    """What only keeps the WAL from being used, told as such."""
    return [
        replace(each, severity=Severity.WARNING, message=f"{each.message}; triggers capture")
        if each.severity is Severity.BLOCKER
        else each
        for each in findings
    ]


def _standby(server: Server) -> Iterator[Finding]:
    if server.in_recovery:
        yield blocker(
            "server",
            "the server is a standby: a publication cannot be made there",
            "point source.dsn at the primary",
        )


def _wal_level(server: Server) -> Iterator[Finding]:
    if server.wal_level != "logical":
        yield blocker(
            "server",
            f"wal_level is {server.wal_level}, so changes cannot be decoded",
            "set rds.logical_replication = 1 in the parameter group, then reboot"
            if server.is_managed
            else "ALTER SYSTEM SET wal_level = 'logical'; then restart postgres",
        )


def _role(server: Server) -> Iterator[Finding]:
    if server.may_replicate:
        return
    template = "GRANT rds_replication TO {};" if server.is_managed else "ALTER ROLE {} REPLICATION;"
    yield blocker(
        f"role {server.role}", "may not replicate", shown(template, identifier(server.role))
    )


def _limits(server: Server) -> Iterator[Finding]:
    if server.other_slot_count >= server.max_replication_slots:
        yield blocker(
            "server",
            f"all {server.max_replication_slots} replication slots are in use",
            f"ALTER SYSTEM SET max_replication_slots = {server.other_slot_count + 4};"
            " then restart postgres; or drop a slot that nobody needs",
        )
    if server.other_sender_count >= server.max_wal_senders:
        yield blocker(
            "server",
            f"all {server.max_wal_senders} wal senders are in use",
            f"ALTER SYSTEM SET max_wal_senders = {server.other_sender_count + 4};"
            " then restart postgres",
        )


def _synchronous(server: Server, application_name: str) -> Iterator[Finding]:
    if is_synchronous_standby(server.synchronous_standby_names, application_name):
        yield blocker(
            "server",
            f"synchronous_standby_names matches {application_name}: every commit of the "
            "application would wait for the change log",
            "ALTER SYSTEM SET synchronous_standby_names = '…'; with the standbys' own names;"
            " then SELECT pg_reload_conf();",
        )


def is_synchronous_standby(names: str, application_name: str) -> bool:
    """True if the setting makes a walsender of this name one that commits wait for.

    >>> is_synchronous_standby("FIRST 1 (a, *)", "tailrace")
    True
    >>> is_synchronous_standby('ANY 2 (a, "b c")', "tailrace")
    False
    """
    quorum = _QUORUM.fullmatch(names)
    listed = quorum[1] if quorum else names
    standbys = {
        quoted.replace('""', '"').lower() or bare.lower()
        for quoted, bare in _STANDBY.findall(listed)
    }
    return "*" in standbys or application_name.lower() in standbys


def _wal_kept(server: Server) -> Iterator[Finding]:
    kept_mb = server.max_slot_wal_keep_mb
    if kept_mb < 0:
        yield warning(
            "server",
            "max_slot_wal_keep_size is unlimited: while capture is down, wal fills the disk",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    elif kept_mb < WAL_KEEP_MB_MIN:
        yield warning(
            "server",
            f"max_slot_wal_keep_size is only {kept_mb} MB: a short stop of capture loses the slot",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    if server.idle_slot_timeout != "0":
        yield warning(
            "server",
            f"idle_replication_slot_timeout is {server.idle_slot_timeout}: capture that is down "
            "for longer loses the slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def _surroundings(server: Server) -> Iterator[Finding]:
    if server.encoding == "SQL_ASCII":
        yield warning(
            f"database {server.database}",
            "its encoding is SQL_ASCII: text that is not UTF-8 cannot be read as text downstream",
        )
    if server.is_proxied:
        yield warning(
            "server",
            "a pooler or proxy answers for postgres: locks and settings of a session may not last",
            "point source.dsn at postgres itself",
        )
