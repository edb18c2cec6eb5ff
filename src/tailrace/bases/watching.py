"""Watches a job that runs in a thread of its own, and gives it up if it must not go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tailrace.bases.reading import Outcome

TURN_S: Final = 0.5
GIVE_UP_S: Final = 30.0
"""How long a job that was cancelled is waited for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long bases may hold up others. `wait_s` is how long to wait for open transactions, in
    tries of `try_ms`; `snapshot_s` and `xmin_age_max` say for how long, and for how many
    transactions, vacuum may be held back; `bytes_per_s` is for all tasks together.
    """

    try_ms: int = 5_000
    wait_s: float = 600.0
    snapshot_s: float = 12 * 3600.0
    xmin_age_max: int = 200_000_000
    bytes_per_s: int | None = None


def watch(
    run: Callable[[], list[Outcome]], cancel: Callable[[], None], turn: Callable[[], None]
) -> list[Outcome]:
    """What `run` returns. `turn` is called while it runs; if it raises, the job is cancelled."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcomes.extend(run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="tailrace-base-job", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            turn()
            thread.join(TURN_S)
        turn()
    except BaseException:
        deadline = time.monotonic() + GIVE_UP_S
        while thread.is_alive() and time.monotonic() < deadline:
            # Again and again: what had not begun could not be cancelled.
            cancel()
            thread.join(TURN_S)
        raise
    if errors:
        raise errors[0]
    return outcomes
