"""What happens to two whole nodes: killed in part or whole, stopped and woken, started again.

A node that cannot reach the source when it starts ends, for a person to see why; whoever runs it as
a service starts it again. One that has begun comes back by itself, however it is cut off.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
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
BEGUN: Final = ("standing by: ", "streaming slot=")
"""What a node says that has reached the source."""


class Nodes:
    """Two of one source; each is struck now and then, and has time to come back."""

    def __init__(
        self,
        directory: Path,
        told: Mapping[str, Mapping[str, object]],
        random: Random,
        was_cut_off: Callable[[str, float], bool],
    ) -> None:
        """`told` has the configuration of each, by name; `was_cut_off` says of a name whether it
        ever was since a moment of the monotonic clock.
        """
        self._random = random
        self._was_cut_off = was_cut_off
        self._nodes = [WholeNode(directory / name, each) for name, each in told.items()]
        self._lives: dict[WholeNode, tuple[int, float]] = {}
        self._asleep: dict[WholeNode, float] = {}
        self.struck: Counter[str] = Counter()
        # In no node's directory: whoever kills a node would take an operator for a part of it.
        self.config = directory / "operator.yaml"
        self.config.write_text(json.dumps(next(iter(told.values()))))

    @property
    def said(self) -> str:
        """All that both have said."""
        return "\n".join(node.said for node in self._nodes)

    def start(self) -> None:
        """Both; the first one leads."""
        self._start(self._nodes[0])
        self._nodes[0].await_said("stream started", times=5)
        self._start(self._nodes[1])
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
        self._start(node)

    def check(self) -> None:
        """Wake who has slept enough, and start again who was cut off before it had begun; fail if
        one has ended by itself.
        """
        for node, until in list(self._asleep.items()):
            if time.monotonic() > until:
                self._wake(node)
        for node in self._nodes:
            if not node.is_running:
                self._revive(node)

    def settle(self) -> None:
        """Wake all."""
        for node in list(self._asleep):
            self._wake(node)

    def end(self) -> None:
        """Whatever state they are in."""
        for node in self._nodes:
            node.end()

    def _start(self, node: WholeNode) -> None:
        self._lives[node] = (len(node.said) if node in self._lives else 0, time.monotonic())
        node.start()

    def _revive(self, node: WholeNode) -> None:
        before, since = self._lives[node]
        said = node.said[before:]
        has_begun = any(words in said for words in BEGUN)
        is_excused = not has_begun and self._was_cut_off(node.directory.name, since)
        assert is_excused, f"{node.directory} has ended\n{said[-4000:]}"
        self.struck["ended at its start"] += 1
        node.await_end()
        self._start(node)

    def _wake(self, node: WholeNode) -> None:
        del self._asleep[node]
        node.signal(signal.SIGCONT)
