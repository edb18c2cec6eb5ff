"""`tailrace snapshot`: bases on Spark, as a user asks for them."""

from __future__ import annotations

from tailrace.log.bases import newest_bases
from tests.bases.oracle import assert_equal
from tests.cli.project import Project
from tests.server import Database

MASTER = 'spark: {master: "local[2]"}'


def test_a_table_gets_a_base_that_is_shown_as_it_grows(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn, more=MASTER)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        admin.execute("INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 50000) AS g")
        with project.capturing():
            project.await_captured(admin)
            with project.running("snapshot", "public.t") as taking:
                ended = taking.wait()
            assert ended.code == 0, ended.err
            (base,) = newest_bases(project.store).values()
            assert f"public.t: 50,000 rows as of {base.position}" in ended.err
            assert "base of public.t: 100%, 50,000 rows" in ended.err
            admin.execute("DELETE FROM t WHERE id > 100")
            project.await_captured(admin)
        assert_equal(project.store, admin, "public.t")


def test_a_table_that_is_not_captured_is_refused(project: Project, database: Database) -> None:
    project.configure(database.dsn, more=MASTER)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with project.capturing():
            code, error, hint = project.run("snapshot", "public.u").failure
            assert (code, error) == (2, "public.u matches no table that is captured")
            assert "tailrace status" in hint
            assert project.run("snapshot").out == "every captured table has a base\n"
