"""The soak of streams: `python -m tests.oracle.streams [SECONDS [SEED]]`.

Writers that keep a journal; two whole nodes that are killed, stopped and started again; streams to
a webhook, to Kinesis, to another Postgres, to Delta and to Parquet, whose servers go down, fail,
throttle, are slow, lose answers, forbid, and refuse some rows for good. At rest each change has
arrived or is a dead letter, in the order of its row, and what keeps rows has the source's; once the
letters are redriven, everything has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

from tests.archive import java_options
from tests.oracle import journal
from tests.oracle.arrivals import Row, committed, file_problems, queue_problems, rows_problems
from tests.oracle.bad_servers import MOODS, Mood, bad_kinesis, bad_webhook
from tests.oracle.fates import Nodes
from tests.oracle.told import QUEUES, WINDOW, configuration
from tests.oracle.verdict import settle
from tests.server import FAST_SETTINGS, Database, Server
from tests.sinks.queue.servers import Queue

WRITERS: Final = 4
LIFE_S: Final = 60.0
"""How long both nodes are left alone, on average."""

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
    random: Random
    faults: int = 0
    asked: list[subprocess.Popen[str]] = field(default_factory=list)

    def go(self, seconds: float, writers: journal.Journaling) -> None:
        """Let everything happen, for so long."""
        began = time.monotonic()
        fault_at = said_at = began
        strike_at = began + LIFE_S
        while (now := time.monotonic()) < began + seconds:
            if now >= fault_at:
                self._disturb()
                fault_at = now + self.random.uniform(2, 8)
            if now >= strike_at:
                self.nodes.strike()
                strike_at = time.monotonic() + self.random.uniform(0.5, 1.5) * LIFE_S
            if now >= said_at:
                said_at = now + PROGRESS_S
                say(f"{now - began:5.0f} s: {self._progress(writers)}")
            self.nodes.check()
            writers.check()
            time.sleep(0.2)

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
            self.asked.append(self._start("dlq", "redrive", stream))

    def rest(self) -> tuple[int, int]:
        """At rest: each change has arrived or is a letter. How many letters, and repeats."""
        for mood in self.moods.values():
            mood.change("")
        self.nodes.settle()
        for asked in self.asked:
            _answer(asked)
        settle(self._problems, patience_s=PATIENCE_S, pause_s=LOOK_S)
        return sum(sum(self._letters(name).values()) for name in QUEUES), self._repeated()

    def redrive(self) -> None:
        """Nothing is refused any more: then everything arrives."""
        for mood in self.moods.values():
            mood.is_healed = True
        for name in QUEUES:
            self._command("dlq", "redrive", name)

        def problems() -> list[str]:
            left = [f"{name} has letters" for name in QUEUES if self._letters(name)]
            return left or self._problems()

        settle(problems, patience_s=PATIENCE_S, pause_s=LOOK_S)

    def _problems(self) -> list[str]:
        self.nodes.check()
        with self.source.connect() as source, self.target.connect() as target:
            truth = committed(source)
            problems = rows_problems(source, target, self.directory / "lake")
        problems += file_problems(self.directory / "changes", truth)
        for name, queue in self.queues.items():
            found, _ = queue_problems(queue.received(), truth, self._letters(name))
            problems += [f"{name} {each}" for each in found]
        return problems

    def _repeated(self) -> int:
        """How many messages came more than once: for each end of a node a window at most of the
        batch, which a zombie shares, and one of letters that were redriven between two tries of it;
        and each request that was not answered.
        """
        with self.source.connect() as source:
            truth = committed(source)
        repeated = 0
        for name, queue in self.queues.items():
            _, count = queue_problems(queue.received(), truth, self._letters(name))
            bound = 2 * WINDOW * self.nodes.struck.total() + WINDOW * self.moods[name].unanswered
            assert count <= bound, f"{name} has {count} messages more than once, of {bound}"
            repeated += count
        return repeated

    def _letters(self, stream: str) -> dict[Row, int]:
        """How many letters each row has."""
        lines = map(json.loads, self._command("dlq", "ls", stream, "--json").splitlines())
        found = {}
        for line in lines:
            assert not line["outdone"], line
            found[line["table"].partition(".")[2], json.loads(line["key"])["id"]] = line["letters"]
        return found

    def _command(self, *arguments: str) -> str:
        """As an operator."""
        return _answer(self._start(*arguments))

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tailrace.cli", *arguments]
        return subprocess.Popen(
            [*command, "--config", str(self.nodes.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _progress(self, writers: journal.Journaling) -> str:
        moods = {name: mood.now or "well" for name, mood in self.moods.items()}
        arrived = len(self.queues["hook"].received())
        struck = dict(self.nodes.struck)
        return f"{writers.committed} transactions, {arrived} at the hook, {moods}, {struck}"


def run(directory: Path, *, seed: int, seconds: float) -> None:
    """One soak, in an empty directory."""
    random = Random(seed)
    with ExitStack() as stack:
        servers = [
            Server(directory / name, settings=FAST_SETTINGS, tcp=True)
            for name in ("source", "target")
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
        told = configuration(
            directory, [source.dsn, target.dsn], {"hook": {"url": hook.url}, "kinesis": place}
        )
        nodes = Nodes(directory, told, random)
        stack.callback(nodes.end)
        queues: dict[str, Queue] = {"hook": hook, "kinesis": kinesis}
        moods = {"hook": hook_mood, "kinesis": kinesis_mood}
        soak = Soak(directory, source, target, queues, moods, nodes, random)
        nodes.start()
        say("both nodes run")
        pause_s = 0.3
        with journal.Journaling(source.connect, seed, count=WRITERS, pause_s=pause_s) as writers:
            soak.go(seconds, writers)
        letters, repeated = soak.rest()
        say(f"at rest: {writers.committed} transactions, {letters} letters, {repeated} repeated")
        soak.redrive()
        say(f"seed {seed} equal: {soak.faults} faults, {dict(nodes.struck)}")


def _answer(command: subprocess.Popen[str]) -> str:
    """What it says; that something is left is no error."""
    said, error = command.communicate()
    assert "Traceback" not in error and "error:" not in error, error
    return said


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
