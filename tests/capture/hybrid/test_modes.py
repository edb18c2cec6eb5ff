"""Settings of capture: what holds for all tables, for some, and what follows for the source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.capture.modes import CaptureMode, HybridSettings, TableRules
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.session import connect
from tests.server import Database

WAL, AUTO, TRIGGER = (TableRules(mode=mode) for mode in CaptureMode)


@pytest.mark.parametrize(
    ("rules", "of_some", "triggers", "wal"),
    [
        (WAL, [], False, True),
        (AUTO, [], True, True),
        (TRIGGER, [], True, False),
        (WAL, [TRIGGER], True, True),
        (TRIGGER, [AUTO], True, True),
        (TRIGGER, [TRIGGER], True, False),
    ],
)
def test_what_a_source_needs_follows_from_all_its_tables(
    rules: TableRules, of_some: list[TableRules], triggers: bool, wal: bool
) -> None:
    settings = HybridSettings(rules, [("public.a", each) for each in of_some])
    assert settings.may_use_triggers is triggers
    assert settings.may_use_wal is wal


def test_a_hand_over_is_stuck_when_the_most_patient_rules_would_have_given_it_up() -> None:
    assert HybridSettings(AUTO).transition_s_max == 600
    slow = replace(AUTO, transition_timeout_s=3600.0, shadow_s=60.0)
    assert HybridSettings(AUTO, [("public.a", slow)]).transition_s_max == 7260


def test_the_first_pattern_that_means_a_table_decides(database: Database) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE orders (id int); CREATE TABLE items (id int)")
        conn.execute("CREATE TABLE other (id int)")
    slow = replace(AUTO, lock_timeout_ms=900)
    settings = HybridSettings(WAL, [("public.o*s", slow), ("public.*r*", TRIGGER)])
    with connect(database.dsn) as session:
        found = {each.name: each for each in tables_matching(session, ["public.*"])}
    assert settings.of(found["orders"]) == slow
    assert settings.of(found["other"]) == TRIGGER
    assert settings.of(found["items"]) == WAL
