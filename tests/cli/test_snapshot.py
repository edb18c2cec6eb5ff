"""`tailrace snapshot`: bases on Spark, as a user asks for them."""

from __future__ import annotations

from tailrace.log.bases import newest_bases, newest_positions
from tests.bases.oracle import assert_equal
from tests.cli.project import Project
from tests.server import Database

MASTER = 'spark: {master: "local[2]"}'


def test_a_base_is_taken_on_spark_and_again_if_asked_for_by_name(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn, more=MASTER)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        admin.execute("INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 50000) AS g")
        with project.capturing():
            project.await_captured(admin)
            with project.running("snapshot", "--json") as first:
                ended = first.wait()
                assert ended.code == 0, ended.err
            (base,) = newest_bases(project.store).values()
            assert base.row_count == 50_000
            assert "base of public.t" in ended.err
            admin.execute("DELETE FROM t WHERE id > 100")
            with project.running("snapshot", "public.t") as second:
                ended = second.wait()
                assert ended.code == 0, ended.err
            assert "public.t: 100 rows as of" in ended.err
            assert newest_positions(project.store)[base.relation.oid] > base.position
            project.await_captured(admin)
        assert_equal(project.store, admin, "public.t")
        # Neither the password nor the user has got into what was said.
        assert "host=" not in ended.err


def test_a_table_that_is_not_captured_is_refused(project: Project, database: Database) -> None:
    project.configure(database.dsn, more=MASTER)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with project.capturing():
            code, error, hint = project.run("snapshot", "public.u").failure
            assert (code, error) == (2, "public.u matches no table that is captured")
            assert "tailrace status" in hint
            assert project.run("snapshot").out == "every captured table has a base\n"
