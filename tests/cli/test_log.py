"""`tailrace log`: what the log holds, in order, in JSON that any parser reads; and its damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.project import Project
from tests.server import Database

STATEMENTS = (
    "CREATE TABLE orders (id int PRIMARY KEY, total numeric(8, 2), blob bytea, at timestamptz)",
    "CREATE TABLE odd (id int PRIMARY KEY, ratio float8, day date)",
    "INSERT INTO orders VALUES"
    " (1, 9.50, '\\x6869', '2026-01-15 10:00:00+01'), (2, NULL, NULL, NULL)",
    "INSERT INTO odd VALUES (1, 'NaN', '4713-01-01 BC')",
    "UPDATE orders SET total = 10 WHERE id = 2",
    "DELETE FROM orders WHERE id = 1",
)


@pytest.fixture
def filled(project: Project, database: Database) -> Project:
    """A project whose log has the changes that the statements make, each in a segment."""
    project.configure(database.dsn)
    with database.connect() as admin:
        for statement in STATEMENTS[:2]:
            admin.execute(statement.encode())
        with project.capturing():
            for statement in STATEMENTS[2:]:
                admin.execute(statement.encode())
                project.await_captured(admin)
    return project


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_log_is_listed_printed_and_verified(filled: Project) -> None:
    listed = lines(filled.run("log", "ls", "--json").out)
    assert [segment["tables"] for segment in listed] == [
        {"public.orders": 2},
        {"public.odd": 1},
        {"public.orders": 1},
        {"public.orders": 1},
    ]
    assert set(listed[0]) == {
        *("key", "start", "end", "transactions", "changes", "bytes", "parts", "tables"),
    }
    assert [segment["start"] for segment in listed[1:]] == [s["end"] for s in listed[:-1]]
    assert len(filled.run("log", "ls").out.splitlines()) == 4

    printed = lines(filled.run("log", "cat").out)
    assert [(row["_table"], row["_op"], row["id"]) for row in printed] == [
        ("public.orders", "insert", 1),
        ("public.orders", "insert", 2),
        ("public.odd", "insert", 1),
        ("public.orders", "update", 2),
        ("public.orders", "delete", 1),
    ]
    first, _, odd, *_ = printed
    assert (first["total"], first["blob"]) == ("9.50", "\\x6869")
    assert first["at"] == "2026-01-15T09:00:00+00:00"
    assert odd["ratio"] == "NaN"
    assert odd["_text"] == {"day": "4713-01-01 BC"}

    sound = filled.run("log", "verify", "--json")
    assert sound.code == 0
    assert sound.json["problems"] == []
    assert (sound.json["segment_count"], sound.json["change_count"]) == (4, 5)
    assert (sound.json["start"], sound.json["end"]) == (listed[0]["start"], listed[-1]["end"])
    assert filled.run("log", "verify").out.startswith("sound: 4 segments, 4 transactions")


def test_printing_starts_after_an_offset_and_ends_at_a_limit(filled: Project) -> None:
    first, second, *_ = lines(filled.run("log", "cat", "--limit", "2").out)
    after = str(first["_offset"])
    found = lines(filled.run("log", "cat", "--from", after, "--table", "public.orders").out)
    assert found[0] == second
    assert [row["_op"] for row in found] == ["insert", "update", "delete"]
    nothing = filled.run("log", "cat", "--table", "public.ordres")
    assert (nothing.code, nothing.out) == (0, "")
    assert "the log has no change of public.ordres" in nothing.err
    code, error, hint = filled.run("log", "cat", "--from", "yesterday").failure
    assert code == 2
    assert "yesterday" in error and "earliest" in hint


def test_damage_is_found_and_named(filled: Project) -> None:
    segment = _damage(filled, number=1)
    ended = filled.run("log", "verify", "--json")
    assert ended.code == 1
    (problem,) = ended.json["problems"]
    assert segment.name in problem
    ended = filled.run("log", "verify")
    assert ended.code == 1
    assert ended.out.splitlines()[-1].startswith("1 problem: ")
    code, error, _ = filled.run("log", "cat").failure
    assert code == 1
    assert segment.name in error


def _damage(project: Project, *, number: int) -> Path:
    """Change one byte among the frames of a segment."""
    segments = sorted((project.directory / "log" / "segments").glob("*.arrow"))
    segment = segments[1 + number]  # the first is the genesis
    data = bytearray(segment.read_bytes())
    data[len(data) * 2 // 3] ^= 0x01
    segment.write_bytes(data)
    return segment


@pytest.mark.parametrize("command", ["ls", "cat", "verify", "compact"])
def test_a_log_that_is_not_there(project: Project, command: str) -> None:
    project.configure("postgresql://ann@db/shop")
    code, error, hint = project.run("log", command).failure
    assert code == 1
    assert error == f"there is no log at {project.store.url}"
    assert "log.url" in hint


@pytest.mark.slow
def test_changes_are_folded_into_newer_bases(filled: Project) -> None:
    tip = lines(filled.run("log", "ls", "--json").out)[-1]["end"]
    with filled.running("log", "compact", "--json") as compacting:
        ended = compacting.wait()
    assert ended.code == 0, ended.err
    folded = [json.loads(line) for line in ended.err.splitlines() if line.startswith("{")]
    assert [row["table"] for row in folded] == ["public.odd", "public.orders"]
    assert {row["position"] for row in folded} == {tip}
    assert filled.run("log", "verify", "--json").json["problems"] == []
