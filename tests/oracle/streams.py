"""The soak of streams: `python -m tests.oracle.streams [SECONDS [SEED]]`.

Writers that keep a journal; two whole nodes that are killed, stopped, started again and cut off;
streams to a webhook, to Kinesis, to another Postgres, to Delta and to Parquet, whose servers go
down, fail, throttle, are slow, lose answers, forbid, and refuse some rows for good; an operator who
redrives and replays. At rest each change has arrived or is a dead letter, in the order of its row,
what keeps rows has the source's, and no replay hangs; once the letters are redriven, everything has
arrived, and replays have sent what they were asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import psycopg

from tests.archive import java_options
from tests.oracle import asking, journal
from tests.oracle.ages import Ages
from tests.oracle.arrivals import Row, committed, file_problems, queue_problems, rows_problems
from tests.oracle.bad_servers import MOODS, Mood, bad_kinesis, bad_webhook
from tests.oracle.fates import Nodes
from tests.oracle.happening import Happening
from tests.oracle.lines import Lines
from tests.oracle.replayed import commit_times, replay_problems
from tests.oracle.replays import Replays
from tests.oracle.told import QUEUES, WINDOW, configuration
from tests.oracle.verdict import settle
from tests.server import FAST_SETTINGS, Database, Server
from tests.sinks.queue.servers import Queue

WRITERS: Final = 4
LIFE_S: Final = 60.0
"""How long both nodes are left alone, on average."""

LINE_S: Final = 20.0
"""Between two faults of connections."""

REPLAY_S: Final = 3.0
"""Between two wishes for replays."""

PATIENCE_S: Final = 1800.0
LOOK_S: Final = 20.0
"""Between two looks at the end: Kinesis' server is in this process, and answers slowly then."""

PROGRESS_S: Final = 30.0


@dataclass
class Soak:
    """One run over one source; `random` is made from the seed."""

    directory: Path
    source: Database
    target: Server
    queues: dict[str, Queue]
    moods: dict[str, Mood]
    nodes: Nodes
    lines: Lines
    replays: Replays
    random: Random
    faults: int = 0
    ages: Ages = field(default_factory=Ages)
    asked: list[subprocess.Popen[str]] = field(default_factory=list)

    def go(self, seconds: float, writers: journal.Journaling) -> None:
        """Let everything happen, for so long."""
        began = time.monotonic()
        happenings = [
            Happening(self._disturb, 5.0, began),
            Happening(self.nodes.strike, LIFE_S, began + LIFE_S),
            Happening(self.lines.strike, LINE_S, began + LINE_S),
            Happening(self.replays.stir, REPLAY_S, began + REPLAY_S),
            Happening(self._look, LOOK_S / 10, began),
            Happening(lambda: say(self._progress(began, writers)), PROGRESS_S, began),
        ]
        while time.monotonic() < began + seconds:
            for each in happenings:
                each.step(self.random)
            self.nodes.check()
            writers.check()
            time.sleep(0.2)

    def _look(self) -> None:
        with suppress(psycopg.OperationalError), self.target.connect() as target:
            self.ages.look(target)

    def _disturb(self) -> None:
        """Another mood for one of the servers; a good one every other time."""
        self.faults += 1
        chosen = self.random.choice([*QUEUES, "target", "operator"])
        if chosen in self.moods:
            is_well = self.random.random() < 0.5
            self.moods[chosen].change("" if is_well else self.random.choice(MOODS))
        elif chosen == "target":
            self.target.restart(immediate=self.random.random() < 0.7)
        else:
            # Not waited for: whoever delivers may be asleep.
            stream = self.random.choice(QUEUES)
            self.asked.append(asking.start(self.nodes.config, "dlq", "redrive", stream))

    def rest(self) -> tuple[int, int]:
        """At rest: each change has arrived or is a letter. How many letters, and repeats."""
        for mood in self.moods.values():
            mood.change("")
        self.lines.settle()
        self.nodes.settle()
        for asked in self.asked:
            asking.answer(asked)
        self.replays.settle()
        settle(self._problems, patience_s=PATIENCE_S, pause_s=LOOK_S)
        return sum(sum(self._letters(name).values()) for name in QUEUES), self._repeated()

    def redrive(self) -> None:
        """Nothing is refused any more: then everything arrives. A redrive ends where a server does
        not answer in time, as on a busy machine: what it has left is asked for again.
        """
        for mood in self.moods.values():
            mood.is_healed = True

        def problems() -> list[str]:
            left = [name for name in QUEUES if self._letters(name)]
            for name in left:
                asking.answer(asking.start(self.nodes.config, "dlq", "redrive", name))
            return [f"{name} has letters" for name in left] or self._problems()

        settle(problems, patience_s=PATIENCE_S, pause_s=LOOK_S)

    def judge_replays(self) -> int:
        """Everything has arrived: what replays have sent of it. How much that was."""
        with self.source.connect() as source:
            times = commit_times(source)
        received = {name: queue.received() for name, queue in self.queues.items()}
        over = list(self.replays.over.values())
        problems, total = replay_problems(
            self.directory / "changes", received, times, over, self.nodes.said
        )
        assert not problems, "\n".join(problems)
        return total

    def _problems(self) -> list[str]:
        self.nodes.check()
        self._look()
        problems = self.replays.problems()
        with self.source.connect() as source, self.target.connect() as target:
            truth = committed(source)
            problems += rows_problems(source, target, self.directory / "lake")
        problems += file_problems(self.directory / "changes", truth)
        for name, queue in self.queues.items():
            found, _ = queue_problems(queue.received(), truth, self._letters(name))
            problems += [f"{name} {each}" for each in found]
        return problems

    def _repeated(self) -> int:
        """How many messages came more than once: for each end of a node, and each time that it was
        cut off, a window at most of the batch, which a zombie shares, and one of letters that were
        redriven between two tries of it; and each request that was not answered.
        """
        with self.source.connect() as source:
            truth = committed(source)
        repeated, ends = 0, self.nodes.struck.total() + self.lines.struck.total()
        for name, queue in self.queues.items():
            _, count = queue_problems(queue.received(), truth, self._letters(name))
            bound = 2 * WINDOW * ends + WINDOW * self.moods[name].unanswered
            assert count <= bound, f"{name} has {count} messages more than once, of {bound}"
            repeated += count
        return repeated

    def _letters(self, stream: str) -> dict[Row, int]:
        return asking.letters(self.nodes.config, stream)

    def _progress(self, began: float, writers: journal.Journaling) -> str:
        moods = {name: mood.now or "well" for name, mood in self.moods.items()}
        arrived = len(self.queues["hook"].received())
        return (
            f"{time.monotonic() - began:5.0f} s: {writers.committed} transactions, {arrived} at the"
            f" hook, {moods}, {dict(self.nodes.struck)}, lines {self.lines.now},"
            f" {len(self.replays.asked)} replays {self.replays.counts}"
        )


def run(directory: Path, *, seed: int, seconds: float) -> None:
    """One soak, in an empty directory."""
    random = Random(seed)
    with ExitStack() as stack:
        settings = {**FAST_SETTINGS, "track_commit_timestamp": "on"}
        servers = [
            Server(directory / name, settings=settings, tcp=True) for name in ("source", "target")
        ]
        for server in servers:
            stack.callback(server.destroy)
            server.start()
        source, target = stack.enter_context(servers[0].database()), servers[1]
        with source.connect() as connection:
            journal.make(connection)
        hook, hook_mood = stack.enter_context(bad_webhook(random))
        kinesis, address, kinesis_mood = stack.enter_context(bad_kinesis(random))
        place = {"stream": kinesis.stream, "region": "us-east-1", "endpoint_url": address}
        # A stream is the same on all nodes, and so is its way to the other database.
        ways = {"node-a": source.tcp_dsn, "node-b": source.tcp_dsn, "target": target.tcp_dsn}
        lines = stack.enter_context(Lines(ways, random))
        sinks = {"hook": {"url": hook.url}, "kinesis": place}
        told = {
            name: configuration(directory, [lines.dsn(name), lines.dsn("target")], sinks)
            for name in ("node-a", "node-b")
        }
        nodes = Nodes(directory, told, random, lines.was_struck)
        stack.callback(nodes.end)
        queues: dict[str, Queue] = {"hook": hook, "kinesis": kinesis}
        moods = {"hook": hook_mood, "kinesis": kinesis_mood}
        nodes.start()
        say("both nodes run")
        replays = Replays(source, directory / "log", nodes.config, random)
        soak = Soak(directory, source, target, queues, moods, nodes, lines, replays, random)
        pause_s = 0.3
        with journal.Journaling(source.connect, seed, count=WRITERS, pause_s=pause_s) as writers:
            soak.go(seconds, writers)
        letters, repeated = soak.rest()
        say(f"at rest: {writers.committed} transactions, {letters} letters, {repeated} repeated")
        soak.redrive()
        replayed = soak.judge_replays()
        say(
            f"seed {seed} equal: {soak.faults} faults, {dict(nodes.struck)}, {dict(lines.struck)},"
            f" {replays.counts} replays of {replayed} changes"
        )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(seconds: float, seed: int) -> None:
    """What was left behind stays if it fails."""
    directory = Path(tempfile.mkdtemp(prefix=f"tailrace-streams-{seed}-"))
    directory.chmod(0o711)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())
    say(f"seed {seed} in {directory}")
    run(directory, seed=seed, seconds=seconds)
    shutil.rmtree(directory)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        float(given[0]) if given else 600.0,
        int(given[1]) if len(given) > 1 else SystemRandom().randrange(1_000_000),
    )
