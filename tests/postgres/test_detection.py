"""Whether the WAL can be had is asked of the server, and each reason against it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from tailrace.postgres.detection import Ability, ability_of, can_use_logical_replication
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.server import Server, read_server
from tailrace.postgres.session import connect
from tests.server import Database, ServerFactory

NAMES = SourceNames.of("main")


@pytest.fixture
def server(database: Database) -> Server:
    with connect(database.dsn) as conn:
        return read_server(conn, slot=NAMES.slot)


REASONS: dict[str, Callable[[Server], Server]] = {
    "the server is a standby": lambda server: replace(server, in_recovery=True),
    "wal_level is replica": lambda server: replace(server, wal_level="replica"),
    "role postgres may not replicate": lambda server: replace(server, may_replicate=False),
    "role postgres may not make a publication": lambda server: replace(server, may_create=False),
    "all 7 replication slots are in use": lambda server: replace(
        server, max_replication_slots=7, other_slot_count=7
    ),
    "all 7 wal senders are in use": lambda server: replace(
        server, max_wal_senders=7, other_sender_count=7
    ),
}


@pytest.mark.parametrize("why", REASONS)
def test_every_reason_against_the_wal_is_told(server: Server, why: str) -> None:
    assert ability_of(server) == Ability(True)
    assert ability_of(REASONS[why](server)) == Ability(False, why)


@pytest.mark.parametrize("version", [16, 18])
def test_a_restart_with_another_wal_level_is_noticed(
    postgres_server: ServerFactory, version: int
) -> None:
    server = postgres_server({"wal_level": "replica"}, version=version)
    with connect(server.dsn) as conn:
        assert not can_use_logical_replication(conn, NAMES).can
    server.settings["wal_level"] = "logical"
    server.restart()
    with connect(server.dsn) as conn:
        assert can_use_logical_replication(conn, NAMES).can


def test_a_slot_of_our_own_is_no_other_ones(postgres_server: ServerFactory) -> None:
    server = postgres_server({"max_replication_slots": "1"})
    query = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    with psycopg.connect(server.dsn, autocommit=True) as other, connect(server.dsn) as conn:
        other.execute(query, [NAMES.slot])
        assert can_use_logical_replication(conn, NAMES).can
        other.execute("SELECT pg_drop_replication_slot(%s)", [NAMES.slot])
        other.execute(query, ["foreign_one"])
        assert not can_use_logical_replication(conn, NAMES).can
