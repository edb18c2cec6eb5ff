"""`tailrace stream`: a stream ends only when nothing is to deliver it any more."""

from __future__ import annotations

from tailrace.cli.config import load
from tailrace.cli.synchronising import bring_up_to_date
from tailrace.log.retention import put_reader_position, reader_positions
from tailrace.model import Lsn
from tailrace.postgres.session import connect
from tests.cli.project import Project
from tests.log.making import begin
from tests.server import Database

UNREACHABLE = "host=127.0.0.1 port=1 dbname=none"


def test_a_stream_is_removed_once_it_is_not_configured(project: Project) -> None:
    project.configure(UNREACHABLE)
    begin(project.store)
    for name in ("lake", "old"):
        put_reader_position(project.store, name, Lsn(0x1000))
    code, error, _ = project.run("stream", "rm", "lake").failure
    assert (code, error) == (2, "stream lake is configured")
    code, error, hint = project.run("stream", "rm", "odl").failure
    assert (code, error, hint) == (2, "the log knows no stream odl", "one of: lake, old")
    assert "old" in project.run("status").out
    assert project.run("stream", "rm", "old").code == 0
    assert list(reader_positions(project.store)) == ["lake"]


FILE = """
streams:
  lake: {sink: {type: delta, path: ./lake}}
  hook: {sink: {type: webhook, url: "https://example/hunter2"}}
"""


def test_streams_are_looked_at_paused_and_resumed_without_a_pipeline(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn, more=FILE)
    assert [row["status"] for row in project.run("stream", "ls", "--json").json_list] == [
        *("stopped", "stopped"),
    ]
    planned = project.run("stream", "plan")
    assert planned.out.splitlines() == [
        "+ stream lake: public.* to delta",
        "+ stream hook: public.* to webhook",
    ]
    assert "paused stream lake" in project.run("stream", "pause", "lake").out
    assert project.run("stream", "plan").out.splitlines() == planned.out.splitlines()[1:]
    shown = project.run("stream", "show", "lake", "--json").json
    assert (shown["status"], shown["origin"]) == ("paused", "file")
    ls = project.run("stream", "ls")
    assert "paused" in ls.out and "hunter2" not in ls.out
    project.run("stream", "resume", "lake")
    assert project.run("stream", "show", "lake", "--json").json["status"] == "stopped"
    sheet = project.run("stream", "show", "lake").out
    assert "no pipeline has taken it up yet" in sheet and '"type": "delta"' in sheet
    code, error, hint = project.run("stream", "pause", "laek").failure
    assert (code, error, hint) == (2, "there is no stream laek", "one of: hook, lake")


def test_who_pauses_or_resumes_a_stream_touches_no_other_and_not_its_definition(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn, more=FILE)
    _run_pipeline(project, database)
    later = "streams: {lake: {sink: {type: memory}}, third: {sink: {type: memory}}}"
    project.configure(database.dsn, more=later)
    planned = project.run("stream", "plan").out
    assert planned.splitlines() == [
        "+ stream third: public.* to memory",
        "~ stream lake: sink",
        "- stream hook: not declared any more; `tailrace stream rm hook` ends it",
    ]
    for verb in ("pause", "resume"):
        assert f"{verb}d stream lake" in project.run("stream", verb, "lake").out
    assert project.run("stream", "plan").out == planned
    assert "paused stream third" in project.run("stream", "pause", "third").out
    assert project.run("stream", "plan").out.splitlines() == planned.splitlines()[1:]
    assert project.run("stream", "show", "third", "--json").json["status"] == "paused"


def _run_pipeline(project: Project, database: Database) -> None:
    """What one does with the file when it begins."""
    with connect(database.dsn) as conn:
        bring_up_to_date(conn, load(project.config))


def test_the_file_never_removes_a_stream_of_sql(project: Project, database: Database) -> None:
    project.configure(database.dsn, more=FILE)
    _run_pipeline(project, database)
    with database.connect() as admin:
        admin.execute("""INSERT INTO tailrace.streams (name, tables, sink)
                         VALUES ('orders', '{public.orders}', '{"type": "memory"}')""")
        stored = admin.execute("SELECT string_agg(sink::text, '') FROM tailrace.streams").fetchone()
        assert stored is not None and "hunter2" not in stored[0]
    project.configure(database.dsn, more="streams: {orders: {}, hook: {tables: [public.t]}}")
    assert project.run("stream", "plan").out.splitlines() == [
        "~ stream hook: tables, sink",
        "- stream lake: not declared any more; `tailrace stream rm lake` ends it",
        "! stream orders: made by SQL, so the file's is not used",
    ]
    _run_pipeline(project, database)
    rows = project.run("stream", "ls", "--json").json_list
    assert [(row["name"], row["origin"]) for row in rows] == [("hook", "file"), ("orders", "sql")]
    project.configure(database.dsn, more="streams: {}")
    begin(project.store)
    assert "removed stream orders" in project.run("stream", "rm", "orders").out
    assert project.run("stream", "rm", "orders").failure[0] == 2
