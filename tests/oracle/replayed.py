"""The verdict on what replays have sent, by the journal and by what came live.

The journal's rows know when their transaction was committed, by Postgres itself. A live arrival
tells which change of its row an event is; what a replay has sent of it must be the same, committed
within its window, behind the live one, in the order of the row, and of a replay that was completed,
all of them. Left out are rows that were ever dead letters: those come by a redrive.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg

from tests.oracle.arrivals import SHOWN, Row, change_rows
from tests.oracle.journal import TABLES
from tests.oracle.replays import Replay

Times: TypeAlias = Mapping[Row, list[datetime]]
"""When each change of each row was committed, in the row's order."""

_TIMES: Final = "SELECT tab, id, pg_xact_commit_timestamp(xmin) FROM journal.changes ORDER BY n"
_LETTER: Final = re.compile(r"message is a dead letter stream=(\w+)(?:\.replay)? .*? event=(\S+)")


@dataclass(frozen=True, slots=True)
class Change:
    """The `number`-th of its row, and where in the log it was committed."""

    row: Row
    number: int
    lsn: int
    content: object

    def is_meant(self, replay: Replay, times: Times) -> bool:
        """Whether the window has it."""
        at = times[self.row][self.number]
        return replay.since <= at <= replay.until and self.row[0] in replay.asked.tables

    def is_wanted(self, replay: Replay, times: Times) -> bool:
        """Whether the replay, if it is whole, must have sent it: what the stream had not delivered
        when it was asked for may have been left out.
        """
        return self.lsn < replay.asked.position and self.is_meant(replay, times)


def commit_times(source: psycopg.Connection) -> Times:
    """What Postgres says; the source must have `track_commit_timestamp`."""
    found: dict[Row, list[datetime]] = defaultdict(list)
    for table, key, at in source.execute(_TIMES):
        found[table, key].append(at)
    return found


def replay_problems(
    files: Path,
    received: Mapping[str, Iterable[dict[str, Any]]],
    times: Times,
    replays: Iterable[Replay],
    said: str,
) -> tuple[list[str], int]:
    """What is wrong with all of them, in change files and in what queues have received, and how
    many changes that was. `said` is what the nodes have told.
    """
    of: dict[str, list[Replay]] = defaultdict(list)
    for replay in replays:
        of[replay.asked.stream].append(replay)
    problems, total = file_problems(files, times, of["files"])
    for name, messages in received.items():
        found, count = queue_problems(messages, times, of[name], letter_events(said, name))
        problems += [f"{name}: {problem}" for problem in found]
        total += count
    return problems, total


def letter_events(said: str, stream: str) -> set[str]:
    """The events that nodes have said to be dead letters, of the stream or of its replays; others
    of the same row may be behind them.
    """
    return {event for name, event in _LETTER.findall(said) if name == stream}


def queue_problems(
    messages: Iterable[dict[str, Any]], times: Times, replays: Iterable[Replay], letters: set[str]
) -> tuple[list[str], int]:
    """What is wrong with what replays have sent to a queue, and how many messages that was."""
    live: dict[str, Change] = {}
    counts: Counter[Row] = Counter()
    sent: dict[str, dict[str, Change]] = defaultdict(dict)
    problems = []
    for message in messages:
        event, number = message["source"]["event_id"], message["source"].get("replay")
        if message["op"] == "t" or (number is None and event in live):
            continue
        content = (message["op"], message["before"], message["after"])
        if number is None:
            row = message["source"]["table"], (message["after"] or message["before"])["id"]
            live[event] = Change(row, counts[row], message["source"]["lsn"], content)
            counts[row] += 1
        elif event not in live or live[event].content != content:
            problems.append(f"replay {number} has {message} where live there was {live.get(event)}")
        else:
            sent[number][event] = live[event]
    known = {replay.id: replay for replay in replays}
    problems += [f"replay {number} is not known" for number in sent.keys() - known.keys()]
    excused = {live[event].row for event in letters}
    for number, replay in known.items():
        problems += _problems_of(replay, sent[number], live, times, excused)
    return problems[:SHOWN], sum(map(len, sent.values()))


def _problems_of(
    replay: Replay,
    sent: Mapping[str, Change],
    live: Mapping[str, Change],
    times: Times,
    excused: set[Row],
) -> list[str]:
    last: dict[Row, int] = {}
    problems = []
    for change in sent.values():
        if not change.is_meant(replay, times):
            problems.append(f"{change} of {times[change.row]} is not in {replay}")
        if change.number <= last.get(change.row, -1):
            problems.append(f"{change} came behind {last[change.row]} in {replay}")
        last[change.row] = change.number
    if replay.is_whole:
        problems += [
            f"{change} of {times[change.row][change.number]} is missing in {replay}"
            for event, change in live.items()
            if event not in sent and change.row not in excused and change.is_wanted(replay, times)
        ]
    return problems[:SHOWN]


def file_problems(files: Path, times: Times, replays: Sequence[Replay]) -> tuple[list[str], int]:
    """What is wrong with what replays have added to change files, which do not say of which replay:
    each change as often as replays have it, and what only a replay that was ended early may have,
    once more at most. And how many changes that was.
    """
    problems: list[str] = []
    total = 0
    for table in TABLES:
        live = _numbered(table, change_rows(files, table, is_replay=False))
        found: Counter[tuple[int, int]] = Counter()
        for row in change_rows(files, table, is_replay=True):
            place = row["_commit_lsn"], row["_ordinal"]
            found[place] += 1
            if place not in live or live[place].content != _content(row):
                problems.append(f"parquet {table} has {row} where live was {live.get(place)}")
        for place, change in live.items():
            least = sum(each.is_whole and change.is_wanted(each, times) for each in replays)
            most = sum(change.is_meant(each, times) for each in replays)
            if not least <= found[place] <= most:
                problems.append(f"parquet {change}: replayed {found[place]}, {least} to {most} due")
        total += found.total()
    return problems[:SHOWN], total


def _numbered(table: str, changes: list[dict[str, Any]]) -> dict[tuple[int, int], Change]:
    counts: Counter[int] = Counter()
    found = {}
    for change in sorted(changes, key=lambda each: (each["_commit_lsn"], each["_ordinal"])):
        place = change["_commit_lsn"], change["_ordinal"]
        key = change["id"]
        found[place] = Change((table, key), counts[key], place[0], _content(change))
        counts[key] += 1
    return found


def _content(change: Mapping[str, Any]) -> object:
    return [change[name] for name in ("_op", "id", "n", "v")]
