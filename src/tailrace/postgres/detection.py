"""Can changes be had from this server's WAL, by this role?

Asked again and again while triggers capture: a restart with another wal_level, a right granted, a
slot set free are noticed and used.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import SourceError
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import Server, read_server
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether it can; if not, what is in the way."""

    can: bool
    why_not: str = ""


def can_use_logical_replication(conn: Connection, names: SourceNames) -> Ability:
    """As of now; a slot and a sender of our own are not counted as another's."""
    return ability_of(read_server(conn, slot=names.slot))


def must_be_logical(server: Server) -> None:
    """Raise SourceError unless the server writes what can be decoded."""
    if server.wal_level != "logical":
        raise SourceError(
            f"wal_level is {server.wal_level}, capture from the wal needs logical",
            hint="ALTER SYSTEM SET wal_level = 'logical', then restart postgres",
        )


def must_have_wal(conn: Connection, names: SourceNames) -> None:
    """Raise SourceError unless changes can be had from the WAL, as of now."""
    server = read_server(conn, slot=names.slot)
    must_be_logical(server)
    ability = ability_of(server)
    if not ability.can:
        raise SourceError(
            f"{ability.why_not}, so nothing can be captured from the wal",
            hint="run `tailrace check`; or set capture.mode to auto",
        )


def ability_of(server: Server) -> Ability:
    """Facts in, verdict out."""
    if server.in_recovery:
        return Ability(False, "the server is a standby")
    if server.wal_level != "logical":
        return Ability(False, f"wal_level is {server.wal_level}")
    if not server.may_replicate:
        return Ability(False, f"role {server.role} may not replicate")
    if not server.may_create:
        return Ability(False, f"role {server.role} may not make a publication")
    if server.other_slot_count >= server.max_replication_slots:
        return Ability(False, f"all {server.max_replication_slots} replication slots are in use")
    if server.other_sender_count >= server.max_wal_senders:
        return Ability(False, f"all {server.max_wal_senders} wal senders are in use")
    return Ability(True)
