"""`tailrace check`: every finding with its cure, as a table and as JSON; exit 1 on a blocker."""

from __future__ import annotations

import json

import pytest

from tests.cli.project import Ended, Project
from tests.server import Database, both_versions


def findings(ended: Ended) -> dict[str, tuple[str, str]]:
    """Severity and cure by subject, but for what is said about the server."""
    return {
        found["subject"]: (found["severity"], found["fix"])
        for found in ended.json_list
        if found["subject"] != "server"
    }


@both_versions
def test_tables_are_judged_one_by_one(project: Project, database: Database) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
        admin.execute("CREATE TABLE keyless (id int)")
        admin.execute("CREATE TABLE filled AS SELECT 1 AS id")
        admin.execute("ALTER TABLE filled ADD PRIMARY KEY (id)")
        before = admin.execute("SELECT count(*) FROM pg_publication").fetchone()
        project.configure(database.dsn, tables=["public.*", "public.godo", "public.x*", "other.*"])
        ended = project.run("check", "--json")
        assert (ended.code, ended.err) == (1, "")
        assert findings(ended) == {
            "public.keyless": ("blocker", 'ALTER TABLE "public"."keyless" ADD PRIMARY KEY (…);'),
            "public.godo": ("blocker", "did you mean public.good?"),
            "public.x*": (
                "warning",
                "make a table, which is taken up by itself; or correct capture.tables",
            ),
            "other.*": ("blocker", "correct it, or make the schema"),
        }
        assert set(ended.json_list[0]) == {"severity", "subject", "message", "fix"}
        assert admin.execute("SELECT count(*) FROM pg_publication").fetchone() == before
    assert not (project.directory / "log").exists()


def test_a_source_without_a_blocker_passes(
    project: Project, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with database.connect() as admin:
        admin.execute('CREATE TABLE "odd [bold]" (id int PRIMARY KEY)')
        project.configure(database.dsn)
        ended = project.run("check")
        assert ended.code == 0
        assert ended.out.endswith("nothing blocks capture\n")
        assert "max_slot_wal_keep_size is unlimited" in ended.out
        admin.execute('ALTER TABLE "odd [bold]" DROP COLUMN id')
    ended = project.run("check")
    assert ended.code == 1
    assert "public.odd [bold]" in ended.out
    assert ended.out.endswith("blockers: 1\n")


@both_versions
def test_f052_a_stream_that_upserts_a_table_without_a_key_is_told_so(
    project: Project, database: Database
) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE events (id int)")
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
    capture = 'capture: {tables: ["public.*"], inserts_only: ["public.*"]}'
    lake, every = "lake: {sink: {type: delta}}", "every: {sink: {type: delta, mode: append}}"
    for streams, severities in ((f"{lake}, {every}", ["blocker", "info"]), (every, ["info"])):
        lines = [f"source: {{dsn: {json.dumps(database.dsn)}}}", "log: {url: 'file:log'}"]
        project.config.write_text("\n".join([*lines, capture, f"streams: {{{streams}}}"]))
        found = [
            each for each in project.run("check", "--json").json_list if each["subject"] != "server"
        ]
        assert sorted(each["severity"] for each in found) == severities
    (told,) = found
    assert told["subject"] == "public.events"


def test_f052_a_stream_that_upserts_a_table_whose_rows_may_be_equal_is_told_so(
    project: Project, database: Database
) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE loose (id int, v text)")
        admin.execute("ALTER TABLE loose REPLICA IDENTITY FULL")
    own = "own: {sink: {type: delta, path: own}, key: [id]}"
    every = "every: {sink: {type: delta, path: every, mode: append}}"
    lake = "lake: {sink: {type: delta}}"
    project.configure(database.dsn, more=f"streams: {{{own}, {every}}}")
    assert {severity for severity, _ in findings(project.run("check", "--json")).values()} == {
        "warning"
    }
    project.configure(database.dsn, more=f"streams: {{{own}, {every}, {lake}}}")
    ended = project.run("check", "--json")
    assert ended.code == 1
    assert findings(ended)["stream lake"][0] == "blocker"


@both_versions
def test_f061_a_where_on_what_old_rows_do_not_come_with_is_told(
    project: Project, database: Database
) -> None:
    with database.connect() as admin:
        admin.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        admin.execute("CREATE TABLE whole (id int PRIMARY KEY, status text)")
        admin.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    every = "every: {sink: {type: delta}, where: id > 5}"
    paid = "paid: {sink: {type: delta}, where: \"status = 'paid' AND id > 5\"}"
    project.configure(database.dsn, more=f"streams: {{{every}, {paid}}}")
    ended = project.run("check", "--json")
    fix = 'ALTER TABLE "public"."orders" REPLICA IDENTITY FULL;'
    assert findings(ended) == {"stream paid": ("warning", fix)}
    assert ended.code == 0


def test_sinks_are_tried_and_a_table_of_the_source_is_no_target(
    project: Project, database: Database
) -> None:
    (project.directory / "taken").touch()
    with database.connect() as admin:
        admin.execute("CREATE TABLE good (id int PRIMARY KEY)")
    topic = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "orders"}
    sinks: dict[str, dict[str, object]] = {
        "same": {"type": "postgres", "dsn": database.dsn},
        "beside": {"type": "postgres", "dsn": database.dsn, "schema": "copy"},
        "nowhere": {"type": "postgres", "dsn": "host=127.0.0.1 port=1 password=hush"},
        "files": {"type": "parquet", "path": "./taken"},
        "loop": {**topic, "dead_letter_queue": topic},
        "queue": {**topic, "dead_letter_queue": {**topic, "topic": "dead"}},
    }
    streams = {name: {"sink": sink} for name, sink in sinks.items()}
    project.configure(database.dsn, more=f"streams: {json.dumps(streams)}")
    ended = project.run("check", "--json")
    assert ended.code == 1 and "hush" not in ended.out
    blocked = {subject for subject, (severity, _) in findings(ended).items()}
    assert blocked == {"stream same", "stream nowhere", "stream files", "stream loop"}
    assert findings(ended)["stream same"][1].startswith('DROP TABLE "public"."good"')
