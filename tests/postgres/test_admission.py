"""What `check` says of a whole source: nothing when all is well, each fault once."""

from __future__ import annotations

import pytest
from psycopg import sql

from tailrace.errors import ConfigError, SourceError
from tailrace.postgres.add_table import add_table
from tailrace.postgres.admission import Finding, Severity, check, is_blocked, require_tables
from tailrace.postgres.catalog import tables_matching
from tailrace.postgres.publication import create_publication
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.slot import create_slot
from tests.server import Database, ServerFactory

NAMES = SourceNames.of("main")


def _check(conn: Connection, *patterns: str) -> list[Finding]:
    """What is found, but for the one warning that every server with default settings gets."""
    found = check(conn, names=NAMES, selection=Selection(patterns))
    return [finding for finding in found if "max_slot_wal_keep_size" not in finding.message]


def _subjects(findings: list[Finding]) -> list[str]:
    return [finding.subject for finding in findings]


def test_the_least_role_passes_and_can_do_all_that_was_checked(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    assert _check(capture, "app.*") == []
    create_publication(capture, NAMES.publication)
    (orders,) = tables_matching(capture, ["app.*"])
    add_table(
        capture,
        NAMES.publication,
        orders,
        lock_timeout_ms=5000,
        before_commit=lambda _: None,
    )
    create_slot(capture, NAMES.slot, lock_timeout_ms=5000)
    app.execute("INSERT INTO orders VALUES (1)")
    assert _check(capture, "app.*") == []


def test_checking_changes_nothing(app: Connection, capture: Connection) -> None:
    app.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    count = """SELECT (SELECT count(*) FROM pg_publication),
                      (SELECT count(*) FROM pg_replication_slots)"""
    _check(capture, "app.*")
    assert capture.execute(count).fetchone() == (0, 0)


def test_a_bad_table_does_not_keep_out_a_good_one(app: Connection, capture: Connection) -> None:
    app.execute("CREATE TABLE bad (a int)")
    app.execute("CREATE TABLE good (a int PRIMARY KEY)")
    app.execute("CREATE TABLE worse (a int)")
    assert _subjects(_check(capture, "app.*")) == ["app.bad", "app.worse"]


def test_a_table_meant_twice_is_found_once(app: Connection, capture: Connection) -> None:
    app.execute("CREATE TABLE bad (a int)")
    assert _subjects(_check(capture, "app.*", "app.bad")) == ["app.bad"]


def test_a_name_without_a_table_is_a_blocker_with_the_nearest_name(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE orders (a int PRIMARY KEY)")
    (wrong,) = _check(capture, "app.order")
    assert (wrong.severity, wrong.subject) == (Severity.BLOCKER, "app.order")
    assert wrong.fix == "did you mean app.orders?"
    with pytest.raises(ConfigError, match=r"app\.order matches no table"):
        require_tables(capture, ["app.orders", "app.order"])


def test_a_wildcard_without_a_table_may_find_one_later_and_says_so(
    capture: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    (missing,) = _check(capture, "app.*")
    assert (missing.severity, missing.subject) == (Severity.WARNING, "app.*")
    with caplog.at_level("INFO", logger="tailrace"):
        require_tables(capture, ["app.*", "no*.*"])
    assert [message.rpartition("=")[2] for message in caplog.messages] == ["app.*", "no*.*"]


@pytest.mark.parametrize(
    ("pattern", "schema", "cure"),
    [
        ("ap.*", "ap", "did you mean schema app?"),
        ('"No Where".o*', "No Where", "correct it, or make the schema"),
    ],
)
def test_a_wildcard_in_a_schema_that_does_not_exist_is_refused(
    capture: Connection, pattern: str, schema: str, cure: str
) -> None:
    (wrong,) = _check(capture, pattern)
    assert (wrong.severity, wrong.subject) == (Severity.BLOCKER, pattern)
    assert (wrong.message, wrong.fix) == (f"matches no table: no schema {schema}", cure)
    with pytest.raises(ConfigError, match=f"no schema {schema}") as caught:
        require_tables(capture, [pattern])
    assert caught.value.hint == cure


def test_a_wildcard_passes_over_views_and_leaves_and_a_name_does_not(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a)")
    app.execute("CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)")
    app.execute("CREATE VIEW seen AS SELECT 1 AS one")
    assert _check(capture, "app.*") == []
    assert _subjects(_check(capture, "app.leaf", "app.seen")) == ["app.leaf", "app.seen"]


def test_a_pattern_that_is_none_is_refused(capture: Connection) -> None:
    with pytest.raises(ConfigError):
        _check(capture, "orders")


def test_a_lost_session_is_a_source_error(admin: Connection, capture: Connection) -> None:
    admin.execute("SELECT pg_terminate_backend(%s, 5000)", (capture.info.backend_pid,))
    with pytest.raises(SourceError) as caught:
        _check(capture, "app.*")
    assert caught.value.retry


def test_f034_f035_a_server_that_cannot_is_blocked(postgres_server: ServerFactory) -> None:
    server = postgres_server(
        {
            "wal_level": "replica",
            "max_replication_slots": "0",
            "max_wal_senders": "0",
            "synchronous_standby_names": "*",
            "max_slot_wal_keep_size": "64MB",
        }
    )
    with connect(server.dsn) as conn:
        conn.execute("CREATE TABLE public.t (a int PRIMARY KEY)")
        found = check(conn, names=NAMES, selection=Selection(["public.*"]))
    assert is_blocked(found)
    text = "\n".join(finding.message for finding in found)
    for words in ("wal_level", "replication slots", "wal senders", "synchronous", "64 MB"):
        assert words in text


def test_f035_a_role_that_may_make_no_publication_is_told_once(
    source: Database, admin: Connection, capture: Connection
) -> None:
    revoke = sql.SQL("REVOKE CREATE ON DATABASE {} FROM capture")
    admin.execute(revoke.format(sql.Identifier(source.name)))
    (found,) = [each for each in _check(capture) if "publication" in each.message]
    assert (found.severity, found.subject) == (Severity.BLOCKER, "role capture")
    admin.execute(found.fix.encode())
    assert _check(capture) == []


def test_f052_a_keyless_table_is_refused_or_taken_by_its_inserts_alone(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE events (a int)")
    app.execute("CREATE TABLE keyed (a int PRIMARY KEY)")
    (refused,) = _check(capture, "app.*")
    assert (refused.severity, refused.subject) == (Severity.BLOCKER, "app.events")
    found = check(capture, names=NAMES, selection=Selection(["app.*"], ["app.*"]))
    (taken,) = [finding for finding in found if finding.subject.startswith("app.")]
    assert (taken.severity, taken.subject) == (Severity.INFO, "app.events")
    assert "only its inserts" in taken.message


def test_the_publication_of_inserts_is_judged_as_well(
    admin: Connection, capture: Connection
) -> None:
    create_publication(admin, NAMES.inserts)
    admin.execute("ALTER PUBLICATION tailrace_main_inserts OWNER TO capture")
    (wrong,) = check(capture, names=NAMES, selection=Selection([]))[-1:]
    assert wrong.subject == "publication tailrace_main_inserts"
    capture.execute(wrong.fix.encode())
    found = check(capture, names=NAMES, selection=Selection([]))
    assert not any(each.subject.startswith("publication") for each in found)
