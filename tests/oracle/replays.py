"""An operator who asks for replays while everything else happens, and cancels some.

Windows are random ones in the past of the run, asked for by SQL or by the command, one after the
other for each stream. What became of each is gathered as it is told: a stream's log remembers only
the last few. At rest none may hang: each is over, its columns are cleared, its stream is healthy.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.oracle import asking
from tests.oracle.journal import SCHEMA, TABLES
from tests.oracle.told import QUEUES, STREAMS
from tests.server import Database

LENGTH_S: Final = 40.0
"""How long a window is at most."""

RATE: Final = 30
"""So many changes a second, for slow ones."""

_ASK: Final = """
UPDATE tailrace.streams SET replay_from_ts = %s, replay_to_ts = %s
 WHERE name = %s RETURNING ("position" - '0/0'::pg_lsn)::bigint
"""
_POSITION: Final = """
SELECT ("position" - '0/0'::pg_lsn)::bigint FROM tailrace.streams WHERE name = %s
"""
_ROWS: Final = """
SELECT name, status, reason, replay_from_ts, replay_to_ts, replay_note FROM tailrace.streams
"""


@dataclass(slots=True)
class Asked:
    """One request. Up to `position`, in bytes of the log, the stream had delivered everything."""

    stream: str
    since: datetime
    until: datetime | None
    tables: tuple[str, ...]
    position: int
    by: subprocess.Popen[str] | None
    """The command that has asked and watches; None if that was SQL."""
    is_cancelled: bool = False
    note: str = ""
    """What the row has said last, before anything else was asked of the stream."""

    @property
    def answer(self) -> str:
        """What was said to it; of a command, once it has ended."""
        if self.by is None:
            return f"asked by SQL, answered {self.note!r}"
        if self.by.poll() is None:
            return "asked by a command, which still watches"
        said, error = self.by.communicate()
        return f"asked by a command, which said {said!r} and {error!r}"


@dataclass(frozen=True, slots=True)
class Replay:
    """One that is over. `asked` is what it was asked for as."""

    id: str
    state: str
    note: str
    since: datetime
    until: datetime
    asked: Asked

    @property
    def is_whole(self) -> bool:
        """Whether it says that it has delivered all that was meant."""
        return self.state == "done"


@dataclass
class Replays:
    """Of one source, with the log in `log`. `config` is for commands."""

    source: Database
    log: Path
    config: Path
    random: Random
    asked: list[Asked] = field(default_factory=list)
    over: dict[str, Replay] = field(default_factory=dict)
    _began: datetime = field(default_factory=lambda: datetime.now(UTC))
    _cancelling: list[subprocess.Popen[str]] = field(default_factory=list)

    def stir(self) -> None:
        """Cancel one that is under way, or ask for one of a stream that has none."""
        self.gather()
        newest = {asked.stream: asked for asked in self.asked}
        under_way = [asked for asked in newest.values() if self._trouble(asked) is not None]
        if under_way and self.random.random() < 0.3:
            self._cancel(self.random.choice(under_way))
            return
        rows = self._rows()
        for stream, asked in newest.items():
            asked.note = rows[stream]["note"] or ""
        busy = {asked.stream for asked in under_way}
        idle = [stream for stream in STREAMS if stream not in busy]
        if idle:
            self._ask(self.random.choice(idle))

    @property
    def counts(self) -> dict[str, int]:
        """How many have come to which end."""
        return dict(Counter(replay.state for replay in self.over.values()))

    def gather(self) -> None:
        """What has become of those that are over."""
        known = {(asked.stream, asked.since): asked for asked in self.asked}
        for path in self.log.glob("replays/*/done/*.json"):
            if path.stem not in self.over:
                with suppress(FileNotFoundError):
                    told = json.loads(path.read_text())
                    since, until = map(datetime.fromisoformat, told["window"].split(" to "))
                    asked = known[path.parts[-3], since]
                    assert asked.until in (None, until), told
                    self.over[path.stem] = Replay(
                        told["id"], told["state"], told["note"], since, until, asked
                    )

    def problems(self) -> list[str]:
        """At rest: those that hang, or came to nothing that was not cancelled."""
        self.gather()
        ends = {(replay.asked.stream, replay.since) for replay in self.over.values()}
        found = [trouble for each in self.asked if (trouble := self._trouble(each)) is not None]
        found += [
            f"the replay of {each.stream} from {each.since} came to nothing: {each.answer}"
            for each in self.asked
            if (each.stream, each.since) not in ends and not each.is_cancelled
        ]
        found += [
            f"the replay {replay.id} of {replay.asked.stream} has failed: {replay.note}"
            for replay in self.over.values()
            # A queue that forbids everything ends a replay.
            if replay.state == "failed" and replay.asked.stream not in QUEUES
        ]
        for row in self._rows().values():
            if row["status"] != "healthy" or row["from"] or row["to"]:
                found.append(f"stream {row}")
        return found

    def settle(self) -> None:
        """What commands have said to the end."""
        for command in [*self._cancelling, *(each.by for each in self.asked if each.by)]:
            _, error = command.communicate()
            assert "Traceback" not in error, error

    def _ask(self, stream: str) -> None:
        random, now = self.random, datetime.now(UTC)
        age_s = (now - self._began).total_seconds()
        since = now - timedelta(seconds=random.uniform(0, age_s))
        until = min(now, since + timedelta(seconds=random.uniform(0, LENGTH_S)))
        by_sql = random.random() < 0.5
        if by_sql:
            is_open = (now - since).total_seconds() < LENGTH_S and random.random() < 0.5
            to = None if is_open else until
            with self.source.connect() as conn:
                found = conn.execute(_ASK, [since, to, stream]).fetchone()
            assert found is not None
            self.asked.append(Asked(stream, since, to, TABLES, found[0] or 0, None))
            return
        some = random.choice([TABLES, TABLES, random.sample(TABLES, 1)])
        chosen = [] if some == TABLES else [f"--table={SCHEMA}.{table}" for table in some]
        with self.source.connect() as conn:
            found = conn.execute(_POSITION, [stream]).fetchone()
        assert found is not None
        window = ["--from", since.isoformat(), "--to", until.isoformat()]
        # A slow one is still under way when something happens to who carries it out.
        rate = f"--rate={random.choice([0, RATE])}"
        command = asking.start(self.config, "replay", stream, *window, *chosen, rate)
        self.asked.append(Asked(stream, since, until, tuple(some), found[0] or 0, command))

    def _cancel(self, asked: Asked) -> None:
        """A command can cancel what SQL has asked for; SQL only that."""
        asked.is_cancelled = True
        if asked.by is None and self.random.random() < 0.7:
            with self.source.connect() as conn:
                conn.execute(_ASK, [None, None, asked.stream])
        else:
            self._cancelling.append(asking.start(self.config, "replay", asked.stream, "--cancel"))

    def _trouble(self, asked: Asked) -> str | None:
        """Why it is not over yet, if it is not."""
        if asked.by is not None and asked.by.poll() is None:
            return f"the command for a replay of {asked.stream} still watches"
        replays = self.log / "replays" / asked.stream
        newest = max(replays.glob("request/*.json"), default=None)
        if newest is not None and not any(replays.glob(f"done/{newest.stem}-*.json")):
            return f"asked of {asked.stream}, and not over: {newest}"
        row = self._rows()[asked.stream]
        if asked.by is None and (row["from"] or (row["note"] or "").startswith("asked as ")):
            return f"stream {row}"
        return None

    def _rows(self) -> dict[str, Mapping[str, Any]]:
        names = ("name", "status", "reason", "from", "to", "note")
        with self.source.connect() as conn:
            rows = [dict(zip(names, row, strict=True)) for row in conn.execute(_ROWS)]
        return {row["name"]: row for row in rows}
