"""What happens to the connections of nodes to servers: cut, frozen, slow, or nothing gets through.

Each node has a line of its own to the source, so one can be cut off while the other is not: it must
come back, or be taken over, and lose nothing. What was frozen comes late, or never.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from random import Random
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.proxy import Faults, Proxy

FAULTS: Final = ("cut", "away", "frozen", "half-open", "slow", "torn")
"""Cut for once; for a while cut and refused; frozen, then thawed; frozen, then cut; late; and cut
once more, each time within what the server says, whenever it is opened again.
"""

TORN: Final = 6
"""So many connections, one after the other, are cut in the middle."""


class Lines:
    """`with Lines({"node-a": dsn}, random) as lines`: each leads to a server by TCP, is struck now
    and then, and mended after a while, whatever else is waited for meanwhile.
    """

    def __init__(self, ways: Mapping[str, str], random: Random) -> None:
        self._ways = ways
        self._proxies = {
            name: Proxy(int(conninfo_to_dict(dsn)["port"] or 0)) for name, dsn in ways.items()
        }
        self._random = random
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._timers: dict[str, threading.Timer] = {}
        self._now: dict[str, str] = {}
        self._mended_at: dict[str, float] = {}
        self.struck: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for proxy in self._proxies.values():
            self._stack.enter_context(proxy)
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()
        self._stack.close()

    def dsn(self, name: str) -> str:
        """How to come to the server by this line."""
        port = str(self._proxies[name].port)
        return make_conninfo(self._ways[name], port=port, sslmode="disable")

    def strike(self) -> None:
        """One of those that are well, if any is."""
        with self._lock:
            well = [name for name in self._proxies if name not in self._now]
        if not well:
            return
        name, fault = self._random.choice(well), self._random.choice(FAULTS)
        self.struck[f"{name} {fault}"] += 1
        proxy, random = self._proxies[name], self._random
        with self._lock:
            self._now[name] = fault
        proxy.faults = Faults(
            latency_s=random.uniform(0.02, 0.3) if fault == "slow" else 0.0,
            frozen=fault in ("frozen", "half-open"),
            refuses=fault == "away",
            cut_after=[random.randrange(1, 30_000) for _ in range(TORN * (fault == "torn"))],
        )
        if fault in ("cut", "away", "torn"):
            proxy.cut()
        self._timers[name] = threading.Timer(random.uniform(1, 30), self._mend, [name])
        self._timers[name].start()

    def settle(self) -> None:
        """Mend all."""
        for name, timer in self._timers.items():
            timer.cancel()
            timer.join()
            self._mend(name)

    def was_struck(self, name: str, since: float) -> bool:
        """Whether it ever was in trouble since then, by the monotonic clock."""
        with self._lock:
            return name in self._now or self._mended_at.get(name, 0.0) >= since

    @property
    def now(self) -> str:
        """Which are in trouble, for people."""
        with self._lock:
            return ", ".join(f"{name} {fault}" for name, fault in self._now.items()) or "well"

    def _mend(self, name: str) -> None:
        proxy = self._proxies[name]
        if self._now.get(name) == "half-open":
            # Still frozen: what has not come by now is lost.
            proxy.cut()
        proxy.faults = Faults()
        with self._lock:
            if self._now.pop(name, None) is not None:
                self._mended_at[name] = time.monotonic()
