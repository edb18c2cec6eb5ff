"""The verdicts of the soak of streams notice what a replay could do wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.oracle import arrivals, journal
from tests.oracle.ages import Ages
from tests.oracle.replayed import file_problems, letter_events, queue_problems
from tests.oracle.replays import Asked, Replay
from tests.server import Database

ROW = ("plain", 7)
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
TIMES = {ROW: [NOON + timedelta(minutes=each) for each in range(5)]}
"""Five changes of one row, a minute apart, at 100, 200, … of the log."""


def message(number: int, replay: str | None = None) -> dict[str, Any]:
    mark = {} if replay is None else {"replay": replay}
    lsn = 100 * (number + 1)
    source = {"table": "plain", "event_id": f"{lsn:016X}-0", "lsn": lsn, **mark}
    return {
        "op": "u" if number else "c",
        "before": None,
        "after": {"id": 7, "n": number, "v": "a"},
        "source": source,
    }


def replay_of(first: int, last: int, *, state: str = "done", position: int = 1000) -> Replay:
    since, until = TIMES[ROW][first], TIMES[ROW][last]
    asked = Asked("hook", since, until, ("plain",), position, None)
    return Replay("r1", state, "", since, until, asked)


LIVE = [message(number) for number in range(5)]


def sent(*numbers: int) -> list[dict[str, Any]]:
    return [*LIVE, *(message(number, "r1") for number in numbers)]


def found(
    messages: list[dict[str, Any]], replay: Replay, letters: frozenset[str] = frozenset()
) -> list[str]:
    return queue_problems(messages, TIMES, [replay], set(letters))[0]


def test_replay_that_sent_its_window_in_order_is_right_and_no_matter_of_the_live_verdict() -> None:
    assert not found(sent(1, 2, 3), replay_of(1, 3))
    truth = {ROW: ["I", "U", "U", "U", "U"]}
    assert arrivals.queue_problems(sent(1, 2, 3), truth, {}) == ([], 0)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1, 3), "is missing"),
        ((1, 3, 2), "came behind"),
        ((1, 2, 3, 4), "is not in"),
        ((), "is missing"),
    ],
    ids=["a gap", "another order", "outside of the window", "nothing"],
)
def test_replay_that_sent_anything_else_is_wrong(numbers: tuple[int, ...], said: str) -> None:
    assert any(said in problem for problem in found(sent(*numbers), replay_of(1, 3)))


def test_replay_that_sent_another_content_or_before_the_live_one_is_wrong() -> None:
    other = message(2, "r1")
    other["after"] = {**other["after"], "v": "b"}
    assert "where live there was" in found([*sent(1), other, message(3, "r1")], replay_of(1, 3))[0]
    early = [message(1, "r1"), *LIVE]
    assert "where live there was None" in found(early, replay_of(1, 1))[0]


def test_replay_that_nobody_asked_for_is_wrong() -> None:
    assert "is not known" in queue_problems(sent(1), TIMES, [], set())[0][0]


def test_window_sent_twice_is_right() -> None:
    assert not found(sent(1, 2, 1, 2, 3), replay_of(1, 3))


def test_replay_that_was_cancelled_may_have_sent_less_but_nothing_else() -> None:
    cancelled = replay_of(1, 3, state="cancelled")
    assert not found(sent(1), cancelled)
    assert found(sent(4), cancelled)


def test_what_was_not_delivered_when_it_was_asked_for_may_be_left_out() -> None:
    assert not found(sent(1, 2), replay_of(1, 3, position=400))
    assert found(sent(1), replay_of(1, 3, position=400))


def test_row_that_was_a_dead_letter_may_be_left_out() -> None:
    event = "000000000000012C-0"
    for stream in ("hook", "hook.replay"):
        told = f"12:00 warning: message is a dead letter stream={stream} table=shop.plain"
        letters = letter_events(f"{told} event={event} error=no", "hook")
        assert letters == {event}
        assert not found(sent(1), replay_of(1, 3), frozenset(letters))
    assert not letter_events(f"a dead letter stream=kinesis table=t event={event} error=", "hook")


def add_changes(files: Path, kind: str, *numbers: int, v: str = "a") -> None:
    """As a batch, or a replay, adds them to the change files."""
    table = files / journal.SCHEMA / "plain"
    (table / "_index").mkdir(parents=True, exist_ok=True)
    name = f"{len(list(table.glob('_index/*')))}"
    rows = [
        {
            "id": 7,
            "n": number,
            "v": v,
            "_op": "update" if number else "insert",
            "_commit_lsn": 100 * (number + 1),
            "_ordinal": 0,
            "_origin": "replay" if kind == "replay" else "stream",
        }
        for number in numbers
    ]
    pq.write_table(pa.Table.from_pylist(rows), table / name)
    told = {"kind": kind, "files": [{"path": name}]}
    (table / "_index" / f"{name}.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("numbers", "is_right"),
    [((1, 2, 3), True), ((1, 3), False), ((1, 1, 2, 3), False), ((1, 2, 3, 4), False)],
    ids=["all", "a gap", "one twice", "outside of the window"],
)
def test_change_files_have_what_replays_sent_as_often_as_they_sent_it(
    tmp_path: Path, numbers: tuple[int, ...], is_right: bool
) -> None:
    add_changes(tmp_path, "batch", *range(5))
    add_changes(tmp_path, "replay", *numbers)
    problems, count = file_problems(tmp_path, TIMES, [replay_of(1, 3)])
    assert (not problems, count) == (is_right, len(numbers))


def test_change_files_with_another_content_are_wrong(tmp_path: Path) -> None:
    add_changes(tmp_path, "batch", *range(5))
    add_changes(tmp_path, "replay", 1, v="b")
    assert "where live was" in file_problems(tmp_path, TIMES, [replay_of(1, 1)])[0][0]


@pytest.mark.parametrize(
    "statement",
    ["UPDATE shop.plain SET n = 1", "INSERT INTO shop.plain VALUES (2, 5, '')"],
    ids=["an older state", "a row that was deleted"],
)
def test_row_that_becomes_older_is_noticed(database: Database, statement: str) -> None:
    ages = Ages()
    with database.connect() as target:
        ages.look(target)
        journal.make(target)
        target.execute("INSERT INTO shop.plain VALUES (1, 2, ''), (2, 3, '')")
        ages.look(target)
        target.execute("DELETE FROM shop.plain WHERE id = 2")
        target.execute("UPDATE shop.plain SET n = 3")
        ages.look(target)
        target.execute(statement)
        with pytest.raises(AssertionError, match="become older"):
            ages.look(target)
