"""The order in which the changes of a row really came about.

Triggers are not called in the order of changes: a user's trigger that updates another row of the
same statement has its update recorded before that row's own insert. But every change of a row
begins with the image that the one before it has left, so the changes of a transaction are put
in an order in which that holds. Any such order has the same beginning and the same end.

Only transactions in which it does not hold already are looked at row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.capture.buffers.lives import Step, lives_of
from tailrace.capture.buffers.search import are_apart, keys_at_first, search
from tailrace.postgres.binaries import Array

Pairs: TypeAlias = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Rows, and for each the next one of the same transaction and key."""


@dataclass(frozen=True, slots=True)
class Images:
    """What rows of one table were before and after each change, in the order recorded.

    `old` and `new` are whole rows, empty where there was none; `old_key` and `new_key` what
    identifies them. `depth` is how many triggers deep a change was made.
    """

    depth: NDArray[np.int64]
    old: Array
    new: Array
    old_key: Array
    new_key: Array


def neighbours(transaction: NDArray[np.int64], key_hash: NDArray[np.int64]) -> Pairs:
    """The rows that another one of the same transaction and key follows, and those."""
    order = np.lexsort((key_hash, transaction))
    transaction, key_hash = transaction[order], key_hash[order]
    is_same = (transaction[1:] == transaction[:-1]) & (key_hash[1:] == key_hash[:-1])
    follows = np.flatnonzero(is_same)
    return order[follows], order[follows + 1]


def is_continued(images: Images, pairs: Pairs) -> NDArray[np.bool_]:
    """For each pair, whether the second begins with the image that the first has left, and was not
    made before it: what a trigger does comes after what it was called for.
    """
    before, after = pairs
    equal = pc.equal(images.new.take(before), images.old.take(after))
    continued: NDArray[np.bool_] = equal.to_numpy(zero_copy_only=False)
    return continued & (images.depth[before] <= images.depth[after])


def true_order(images: Images, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """These rows, of one transaction, in an order in which each goes on from the one before."""
    columns = (images.old, images.new, images.old_key, images.new_key)
    values = [*(column.take(rows).to_pylist() for column in columns), images.depth[rows].tolist()]
    return rows[_in_order([Step(*step) for step in zip(*values, strict=True)])]


def _in_order(steps: Sequence[Step]) -> list[int]:
    """In the order of the lives that the steps seem to be. If those do not fit beside each other
    as they come, another order of them may, or no row was put back as it was, after all. Where no
    trigger of the user's has had a hand, the order recorded is the true one if it can be.
    """
    if all(step.depth <= 1 for step in steps) and _can_be(steps):
        return list(range(len(steps)))
    lives = lives_of(steps, put_back=True)
    order, fits = _walk_lives(steps, lives)
    if fits:
        return order
    return search(steps, lives) or search(steps, lives_of(steps, put_back=False)) or order


def _can_be(steps: Sequence[Step]) -> bool:
    """Whether each step finds the row that the one before it has left, and a key that is free."""
    held: dict[bytes, bytes] = {}
    for step in steps:
        if step.old:
            if held.get(step.old_key, step.old) != step.old:
                return False
            held[step.old_key] = b""
        if step.new:
            if held.get(step.new_key):
                return False
            held[step.new_key] = step.new
    return True


def _walk_lives(steps: Sequence[Step], lives: list[list[int]]) -> tuple[list[int], bool]:
    """Walk each row's life from its first image to its last; of several rows, the one whose next
    step was recorded first goes first, unless it must wait for a key. Also whether all fit: if not,
    it goes on as recorded.
    """
    keys, fits = _Keys(steps, lives), are_apart(steps, lives)
    ready = [(life[0], number, 0) for number, life in enumerate(lives)]
    heapify(ready)
    waiting: list[tuple[int, int, int]] = []
    ordered: list[int] = []
    while ready or waiting:
        is_forced = not ready
        if is_forced:
            ready, waiting, fits = sorted(waiting), [], False
        place, number, at = heappop(ready)
        if keys.must_wait(place, number, at) and not is_forced:
            waiting.append((place, number, at))
            continue
        ordered.append(place)
        if at + 1 < len(lives[number]):
            heappush(ready, (lives[number][at + 1], number, at + 1))
        if keys.pass_on(steps[place]):
            for each in waiting:
                heappush(ready, each)
            waiting = []
    return ordered, fits


class _Keys:
    """Which keys are taken, and how many steps are still to take each."""

    def __init__(self, steps: Sequence[Step], lives: list[list[int]]) -> None:
        self._steps = steps
        self._taken = set(keys_at_first(steps, lives))
        self._takers = Counter(step.new_key for step in steps if step.takes_key)
        self._last_leave = [
            max((at for at, place in enumerate(life) if steps[place].leaves_key), default=-1)
            for life in lives
        ]

    def must_wait(self, place: int, number: int, at: int) -> bool:
        """Until the key is free; and who keeps it for good lets the others go first."""
        step = self._steps[place]
        if not step.takes_key:
            return False
        stays = at >= self._last_leave[number]
        return step.new_key in self._taken or (stays and self._takers[step.new_key] > 1)

    def pass_on(self, step: Step) -> bool:
        """The step is made; whether somebody may have waited for it."""
        if step.leaves_key:
            self._taken.discard(step.old_key)
        if step.takes_key:
            self._taken.add(step.new_key)
            self._takers[step.new_key] -= 1
        return step.leaves_key
