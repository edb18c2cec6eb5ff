"""Tables that cannot be captured, and why."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.postgres.catalog import TableInfo, read_tables, relation_names
from tailrace.postgres.check_table import table_findings
from tailrace.postgres.finding import Finding, Severity
from tailrace.postgres.session import Connection
from tests.server import Database


def _table(conn: Connection, name: str) -> TableInfo:
    (table,) = read_tables(conn, [oid for oid, _, known in relation_names(conn) if known == name])
    return table


def _findings(conn: Connection, name: str, *, is_published: bool = False) -> list[Finding]:
    return table_findings(conn, _table(conn, name), is_published=is_published)


@pytest.mark.parametrize(
    "definition",
    [
        ["CREATE TABLE t (a int PRIMARY KEY, b text)"],
        ["CREATE TABLE t (a int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY FULL"],
        [
            "CREATE TABLE t (a int NOT NULL UNIQUE)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_a_key",
        ],
        [
            "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a)",
            "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (9)",
        ],
    ],
)
def test_a_good_table_has_no_findings(
    app: Connection, capture: Connection, definition: list[str]
) -> None:
    for statement in definition:
        app.execute(statement)
    assert _findings(capture, "t") == []


FAULTS = [
    (["CREATE TABLE t (a int)"], Severity.BLOCKER, "has no primary key", "ADD PRIMARY KEY"),
    (
        ["CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)"],
        Severity.BLOCKER,
        "deferrable primary key",
        'ALTER TABLE "app"."t" DROP CONSTRAINT …, ADD PRIMARY KEY (…);',
    ),
    (
        [
            "CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        ],
        Severity.WARNING,
        "has a deferrable key",
        "DROP CONSTRAINT",
    ),
    (
        ["CREATE TABLE t (a int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"],
        Severity.BLOCKER,
        "replica identity nothing",
        'ALTER TABLE "app"."t" REPLICA IDENTITY DEFAULT;',
    ),
    (
        [
            "CREATE TABLE t (a int NOT NULL)",
            "CREATE UNIQUE INDEX chosen ON t (a)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX chosen",
            "DROP INDEX chosen",
        ],
        Severity.BLOCKER,
        "index that is gone",
        "ADD PRIMARY KEY",
    ),
    (
        ["CREATE TABLE t (a int)", "ALTER TABLE t REPLICA IDENTITY FULL"],
        Severity.WARNING,
        "cannot be told apart",
        "ADD PRIMARY KEY",
    ),
    (
        ["CREATE UNLOGGED TABLE t (a int PRIMARY KEY)"],
        Severity.BLOCKER,
        "is unlogged",
        'ALTER TABLE "app"."t" SET LOGGED;',
    ),
    (
        [
            "CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a)",
            "CREATE TABLE t PARTITION OF root FOR VALUES FROM (0) TO (9)",
        ],
        Severity.BLOCKER,
        "is a partition",
        "name the root",
    ),
    (
        [
            "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a)",
            "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "ALTER TABLE leaf REPLICA IDENTITY NOTHING",
        ],
        Severity.BLOCKER,
        "partition app.leaf has replica identity nothing",
        'ALTER TABLE "app"."leaf" REPLICA IDENTITY DEFAULT;',
    ),
    (
        ["CREATE TABLE t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) STORED)"],
        Severity.INFO,
        "generated columns, which are not captured: b",
        "",
    ),
    (
        [
            "CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) STORED PRIMARY KEY,"
            " c int NOT NULL UNIQUE)"
        ],
        Severity.BLOCKER,
        "generated columns in its key",
        'ALTER TABLE "app"."t" REPLICA IDENTITY USING INDEX "t_c_key";',
    ),
    (
        ["CREATE TABLE t (a int UNIQUE, b int NOT NULL UNIQUE, c int, UNIQUE (b, a))"],
        Severity.BLOCKER,
        "has no primary key",
        'ALTER TABLE "app"."t" REPLICA IDENTITY USING INDEX "t_b_key";',
    ),
    (
        [
            "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a)",
            "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        ],
        Severity.BLOCKER,
        "partition app.leaf has another replica identity",
        'ALTER TABLE "app"."leaf" REPLICA IDENTITY FULL;',
    ),
    (
        [
            "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL) PARTITION BY RANGE (a)",
            "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "CREATE UNIQUE INDEX chosen ON leaf (b)",
            "ALTER TABLE leaf REPLICA IDENTITY USING INDEX chosen",
        ],
        Severity.BLOCKER,
        "partition app.leaf has another replica identity",
        'ALTER TABLE "app"."leaf" REPLICA IDENTITY DEFAULT;',
    ),
    (
        ["CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) STORED PRIMARY KEY)"],
        Severity.BLOCKER,
        "generated columns in its key",
        "of plain columns",
    ),
    (
        ["CREATE TABLE t (a int PRIMARY KEY)", "CREATE TABLE child () INHERITS (t)"],
        Severity.INFO,
        "children by inheritance, tables of their own: app.child",
        "",
    ),
    (
        ['CREATE TABLE t (id int PRIMARY KEY, a int, "A" int)'],
        Severity.BLOCKER,
        "equal but for case: A, a",
        'ALTER TABLE "app"."t" RENAME COLUMN "A" TO "A_";',
    ),
    (
        ['CREATE TABLE t (id int PRIMARY KEY, "_OP" int)'],
        Severity.BLOCKER,
        "named like ours: _OP",
        'ALTER TABLE "app"."t" RENAME COLUMN "_OP" TO "_OP_";',
    ),
    (["CREATE VIEW t AS SELECT 1 AS one"], Severity.BLOCKER, "is a view", "leave it out"),
    (
        ["CREATE MATERIALIZED VIEW t AS SELECT 1 AS one"],
        Severity.BLOCKER,
        "is a materialised view",
        "leave it out",
    ),
]


@pytest.mark.parametrize(("definition", "severity", "message", "fix"), FAULTS)
def test_each_fault_of_a_table_is_one_finding(
    app: Connection,
    capture: Connection,
    definition: list[str],
    severity: Severity,
    message: str,
    fix: str,
) -> None:
    for statement in definition:
        app.execute(statement)
    (finding,) = _findings(capture, "t")
    assert finding.severity is severity
    assert finding.subject == "app.t"
    assert message in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("definition", "severity", "message", "fix"),
    [fault for fault in FAULTS if fault[3].endswith(";") and "…" not in fault[3]],
)
def test_the_sql_of_a_finding_is_its_cure(
    app: Connection,
    capture: Connection,
    definition: list[str],
    severity: Severity,
    message: str,
    fix: str,
) -> None:
    for statement in definition:
        app.execute(statement)
    (finding,) = _findings(capture, "t")
    app.execute(finding.fix.encode())
    assert not any(message in each.message for each in _findings(capture, "t"))
    assert all(each.severity is not Severity.BLOCKER for each in _findings(capture, "t"))


def test_a_generated_column_that_is_not_stored_is_told_apart(
    app: Connection, capture: Connection, source: Database
) -> None:
    if source.server.version < 18:
        return
    app.execute("CREATE TABLE t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) VIRTUAL)")
    (finding,) = _findings(capture, "t")
    assert finding.message.endswith("not captured: b (virtual)")


def test_rows_are_known_by_the_key_that_old_rows_are_sent_with(
    app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL UNIQUE)")
    assert _table(capture, "t").row_key == ("a",)
    app.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert _table(capture, "t").row_key == ("a",)
    app.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_b_key")
    assert _table(capture, "t").row_key == ("b",)
    assert _findings(capture, "t") == []


def test_a_foreign_or_unlogged_partition_keeps_out_its_table(admin: Connection) -> None:
    admin.execute("CREATE FOREIGN DATA WRAPPER elsewhere")
    admin.execute("CREATE SERVER far FOREIGN DATA WRAPPER elsewhere")
    admin.execute("CREATE TABLE public.t (a int NOT NULL) PARTITION BY RANGE (a)")
    admin.execute("ALTER TABLE public.t REPLICA IDENTITY FULL")
    admin.execute(
        "CREATE FOREIGN TABLE public.leaf PARTITION OF public.t FOR VALUES FROM (0) TO (9)"
        " SERVER far"
    )
    (finding,) = [each for each in _findings(admin, "t") if each.severity is Severity.BLOCKER]
    assert "partition public.leaf is a foreign table" in finding.message
    admin.execute(finding.fix.encode())
    admin.execute("CREATE UNLOGGED TABLE public.quick (a int PRIMARY KEY)")
    admin.execute("ALTER TABLE public.quick REPLICA IDENTITY FULL")
    admin.execute("ALTER TABLE public.t ATTACH PARTITION public.quick FOR VALUES FROM (0) TO (9)")
    (finding,) = [each for each in _findings(admin, "t") if each.severity is Severity.BLOCKER]
    assert "partition public.quick is unlogged" in finding.message
    admin.execute(finding.fix.encode())
    assert all(each.severity is not Severity.BLOCKER for each in _findings(admin, "t"))


def test_f035_a_partition_that_may_not_be_read_comes_with_the_grant(
    admin: Connection, app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a)")
    admin.execute("CREATE TABLE app.leaf PARTITION OF app.t FOR VALUES FROM (0) TO (9)")
    (finding,) = _findings(capture, "t")
    assert "partition app.leaf cannot be read by capture" in finding.message
    assert finding.fix == 'GRANT SELECT ON "app"."leaf" TO "capture";'
    admin.execute(finding.fix)
    assert _findings(capture, "t") == []


def test_a_foreign_table_is_refused(admin: Connection) -> None:
    admin.execute("CREATE FOREIGN DATA WRAPPER elsewhere")
    admin.execute("CREATE SERVER far FOREIGN DATA WRAPPER elsewhere")
    admin.execute("CREATE FOREIGN TABLE public.t (a int) SERVER far")
    (finding,) = _findings(admin, "t")
    assert "is a foreign table" in finding.message


@pytest.mark.parametrize(
    ("definition", "breaks_from"),
    [
        (["CREATE TABLE t (a int)"], 0),
        (["CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)"], 0),
        (["CREATE TABLE t (a int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"], 0),
        (
            [
                "CREATE TABLE t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) STORED)",
                "ALTER TABLE t REPLICA IDENTITY FULL",
            ],
            18,
        ),
        (["CREATE TABLE t (a int PRIMARY KEY)"], 99),
    ],
)
def test_f052_blocked_are_those_whose_updates_publishing_would_break(
    app: Connection,
    capture: Connection,
    source: Database,
    definition: list[str],
    breaks_from: int,
) -> None:
    """Postgres itself is the judge of the finding."""
    for statement in definition:
        app.execute(statement)
    breaks = source.server.version >= breaks_from
    severities = {finding.severity for finding in _findings(capture, "t")}
    assert (Severity.BLOCKER in severities) is breaks
    capture.execute("CREATE PUBLICATION by_hand FOR TABLE app.t")
    app.execute("INSERT INTO t VALUES (1)")
    if breaks:
        with pytest.raises(psycopg.Error, match="cannot update table"):
            app.execute("UPDATE t SET a = 2")
    else:
        app.execute("UPDATE t SET a = 2")


def test_rows_of_a_published_table_are_no_finding(app: Connection, capture: Connection) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    app.execute("INSERT INTO t VALUES (1)")
    assert _findings(capture, "t", is_published=True) == []


def test_f035_another_owners_table_comes_with_the_grant(
    admin: Connection, capture: Connection
) -> None:
    admin.execute("CREATE ROLE theirs")
    admin.execute("CREATE TABLE public.t (a int PRIMARY KEY)")
    admin.execute("ALTER TABLE public.t OWNER TO theirs")
    (finding,) = _findings(capture, "t")
    assert finding.severity is Severity.BLOCKER
    assert "belongs to theirs" in finding.message
    grant, alter = finding.fix.split(" or ")
    assert grant == 'GRANT "theirs" TO "capture";'
    admin.execute(alter)
    assert _findings(capture, "t") == []


def test_f035_a_closed_schema_comes_with_the_grant(
    admin: Connection, app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    admin.execute("ALTER SCHEMA app OWNER TO postgres")
    (finding,) = _findings(capture, "t")
    assert "cannot be read by capture" in finding.message
    admin.execute(finding.fix)
    assert _findings(capture, "t") == []


def test_row_level_security_never_hides_rows_from_the_check(
    admin: Connection, app: Connection, capture: Connection
) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    app.execute("INSERT INTO t VALUES (1)")
    app.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    app.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
    (finding,) = _findings(capture, "t")
    assert "row-level security" in finding.message
    admin.execute(finding.fix)
    assert _findings(capture, "t") == []


def test_a_locked_table_does_not_fail_the_check(app: Connection, capture: Connection) -> None:
    app.execute("CREATE TABLE t (a int PRIMARY KEY)")
    table = _table(capture, "t")
    capture.execute("SET lock_timeout TO '50ms'")
    with app.transaction():
        app.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        (finding,) = table_findings(capture, table)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "app.t")
