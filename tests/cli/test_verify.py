"""`tailrace verify`: what differs, as a table and as JSON; exit 1 if something does; `--repair`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.project import Project
from tests.server import Database
from tests.verify.flow import FILL, flowing

STREAMS = """
streams:
  lake: {sink: {type: delta, path: ./lake}}
  shown: {sink: {type: console}}
"""


def test_differences_are_told_repaired_and_remembered(
    project: Project, database: Database, tmp_path: Path
) -> None:
    project.configure(database.dsn, more=STREAMS)
    with flowing(database, tmp_path) as flow:
        flow.deliver(FILL)
        ended = project.run("verify")
        assert (ended.code, ended.err) == (0, ""), ended
        assert "every lake table equals its source at 0/" in ended.out
        flow.lake_table().update({"label": "'wrong'"}, predicate="id = 6")
        ended = project.run("verify", "lake", "--json")
        assert ended.code == 1
        (stream,) = ended.json_list
        (table,) = stream["tables"]
        assert (table["table"], table["equal"], table["source_rows"]) == (
            "public.things",
            False,
            500,
        )
        assert [found["key"] for found in table["differences"]] == [{"id": "6"}]
        assert [(found["low"], found["high"]) for found in table["ranges"]] == [(None, None)]
        (told,) = project.run("status", "--json").json["streams"][:1]
        assert told["verified"]["unlike"] == ["public.things"]
        assert "public.things differs" in " ".join(project.run("status").out.split())
        ended = project.run("verify", "lake", "public.things", "--repair")
        assert (ended.code, ended.out.splitlines()[-1][-17:]) == (0, "; 1 rows repaired"), ended
        assert project.run("verify", "--json").json_list[0]["tables"][0]["equal"]
        assert project.run("status", "--json").json["streams"][0]["verified"]["unlike"] == []


def test_what_cannot_be_compared_is_refused(project: Project, database: Database) -> None:
    project.configure(database.dsn, more=STREAMS)
    for arguments, code, message in [
        (["lakes"], 2, "there is no stream lakes"),
        (["shown"], 2, "stream shown has a console sink; only lakes (type: delta) are compared"),
        (["lake"], 1, "stream lake has not delivered anything yet"),
    ]:
        ended = project.run("verify", *arguments)
        assert ended.code == code and message in ended.err, ended
    project.configure(
        database.dsn, more="streams: {a: {sink: {type: console}, verify: {every: 1d}}}"
    )
    ended = project.run("verify")
    assert ended.code == 2 and "verify needs a delta sink" in ended.err, ended
