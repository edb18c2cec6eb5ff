"""What happens to two whole nodes: killed in part or whole, stopped and woken, started again."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final

from tests.cli.whole_node import WholeNode

FATES: Final[Mapping[str, tuple[str, ...]]] = {
    "whole": ("run", "capture", "pipeline", "java"),
    "all but java": ("run", "capture", "pipeline"),
    "run": ("run",),
    "capture": ("capture",),
    "pipeline": ("pipeline",),
    "java": ("java",),
}
"""Which processes of a node are killed; the others must end by themselves."""

STOPPED: Final = "stopped"


class Nodes:
    """Two of one source; each is struck now and then, and has time to come back."""

    def __init__(self, directory: Path, told: Mapping[str, object], random: Random) -> None:
        self._random = random
        self._nodes = [WholeNode(directory / name, told) for name in ("node-a", "node-b")]
        self._asleep: dict[WholeNode, float] = {}
        self.struck: Counter[str] = Counter()

    @property
    def config(self) -> Path:
        """A configuration, for other commands."""
        return self._nodes[0].config

    def start(self) -> None:
        """Both; the first one leads."""
        self._nodes[0].start()
        self._nodes[0].await_said("stream started", times=5)
        self._nodes[1].start()
        self._nodes[1].await_said("spark started")

    def strike(self) -> None:
        """One of them, and let it come back."""
        node = self._random.choice([each for each in self._nodes if each not in self._asleep])
        fate = self._random.choice([*FATES, STOPPED, STOPPED])
        self.struck[fate] += 1
        if fate == STOPPED:
            node.signal(signal.SIGSTOP)
            self._asleep[node] = time.monotonic() + self._random.uniform(1, 40)
            return
        node.kill(*FATES[fate])
        node.start()

    def check(self) -> None:
        """Wake who has slept enough; fail if one has ended by itself."""
        for node, until in list(self._asleep.items()):
            if time.monotonic() > until:
                self._wake(node)
        for node in self._nodes:
            assert node.is_running, f"{node.directory} has ended\n{node.said[-4000:]}"

    def settle(self) -> None:
        """Wake all."""
        for node in list(self._asleep):
            self._wake(node)

    def end(self) -> None:
        """Whatever state they are in."""
        for node in self._nodes:
            node.end()

    def _wake(self, node: WholeNode) -> None:
        del self._asleep[node]
        node.signal(signal.SIGCONT)
