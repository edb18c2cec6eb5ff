"""Settings, rights and limits of a server that keep capture from working."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.postgres.check_server import is_synchronous_standby, server_findings
from tailrace.postgres.finding import Severity
from tailrace.postgres.server import Server

GOOD = Server(
    system_id=7,
    timeline=1,
    version_num=180004,
    in_recovery=False,
    database="shop",
    encoding="UTF8",
    wal_level="logical",
    max_replication_slots=10,
    other_slot_count=9,
    max_wal_senders=10,
    other_sender_count=9,
    max_slot_wal_keep_mb=50_000,
    idle_slot_timeout="0",
    synchronous_standby_names="",
    role='odd "role"',
    is_superuser=False,
    may_replicate=True,
    may_create=True,
    is_managed=False,
    is_proxied=False,
)


def test_a_good_server_has_no_findings() -> None:
    assert server_findings(GOOD, application_name="tailrace") == []
    assert server_findings(replace(GOOD, is_managed=True), application_name="tailrace") == []


@pytest.mark.parametrize(
    ("changed", "severity", "message", "fix"),
    [
        ({"version_num": 130021}, Severity.BLOCKER, "13.21 is too old", "14"),
        ({"version_num": 160008}, Severity.WARNING, "16.8 loses changes", "16.9"),
        ({"wal_level": "replica"}, Severity.BLOCKER, "wal_level is replica", "ALTER SYSTEM"),
        (
            {"wal_level": "replica", "is_managed": True},
            Severity.BLOCKER,
            "wal_level is replica",
            "rds.logical_replication",
        ),
        ({"in_recovery": True}, Severity.BLOCKER, "is a standby", "primary"),
        (
            {"may_replicate": False},
            Severity.BLOCKER,
            "may not replicate",
            'ALTER ROLE "odd ""role""" REPLICATION;',
        ),
        (
            {"may_replicate": False, "is_managed": True},
            Severity.BLOCKER,
            "may not replicate",
            'GRANT rds_replication TO "odd ""role""";',
        ),
        ({"other_slot_count": 10}, Severity.BLOCKER, "10 replication slots", "= 14;"),
        ({"other_sender_count": 10}, Severity.BLOCKER, "10 wal senders", "= 14;"),
        (
            {"synchronous_standby_names": "*"},
            Severity.BLOCKER,
            "every commit of the application would wait",
            "synchronous_standby_names",
        ),
        ({"max_slot_wal_keep_mb": -1}, Severity.WARNING, "unlimited", "max_slot_wal_keep_size"),
        ({"max_slot_wal_keep_mb": 64}, Severity.WARNING, "64 MB", "max_slot_wal_keep_size"),
        ({"idle_slot_timeout": "1d"}, Severity.WARNING, "timeout is 1d", "= 0;"),
        ({"encoding": "SQL_ASCII"}, Severity.WARNING, "SQL_ASCII", ""),
        ({"is_proxied": True}, Severity.WARNING, "pooler or proxy", "postgres itself"),
    ],
)
def test_each_fault_of_a_server_is_one_finding(
    changed: dict[str, Any], severity: Severity, message: str, fix: str
) -> None:
    server = replace(GOOD, **changed)
    (finding,) = server_findings(server, application_name="tailrace")
    assert finding.severity is severity
    assert message in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("version_num", "updates"),
    [
        (140012, ["14.13", "14.18"]),
        (150007, ["15.8", "15.13"]),
        (160003, ["16.4", "16.9"]),
        (160008, ["16.9"]),
        (160009, ["16.10"]),
        (160010, []),
        (170000, ["17.5"]),
        (170005, ["17.6"]),
        (170006, []),
        (180000, []),
    ],
)
def test_f040_minors_with_known_bugs_of_decoding_are_warned_of(
    version_num: int, updates: list[str]
) -> None:
    found = server_findings(replace(GOOD, version_num=version_num), application_name="x")
    assert [finding.fix for finding in found] == [f"update to {fixed}" for fixed in updates]
    assert all(finding.severity is Severity.WARNING for finding in found)


@pytest.mark.parametrize(
    ("names", "matches"),
    [
        ("", False),
        ("*", True),
        ("tailrace", True),
        ("a, Tailrace", True),
        ('"tailrace"', True),
        ("FIRST 1 (a, tailrace)", True),
        ("ANY 2(a, *)", True),
        ("2 (a, b)", False),
        ("tailrace_standby", False),
        ('first 1 ("a tailrace", b)', False),
        ('"a""b", c', False),
    ],
)
def test_synchronous_standby_names_are_read_as_postgres_reads_them(
    names: str, matches: bool
) -> None:
    assert is_synchronous_standby(names, "tailrace") is matches
