"""Looks through the orders in which lives of rows may go on beside each other, for one in which no
two rows have a key at once.

Where each life has got to says which keys are taken, so no such state is looked at twice. Few
transactions come here, and those that do are small; a large one gives up after a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.capture.buffers.lives import Step

WORK_MAX: Final = 1_000_000
"""How many steps, made and next, are looked at before it gives up."""


@dataclass(frozen=True, slots=True)
class _State:
    """How many steps of each life are made, in which order, and the keys that have a row now."""

    made: tuple[int, ...]
    taken: frozenset[bytes]
    order: tuple[int, ...] = ()

    def after(self, step: Step, place: int, number: int) -> _State:
        """One step on."""
        taken = self.taken - {step.old_key} if step.leaves_key else self.taken
        return _State(
            (*self.made[:number], self.made[number] + 1, *self.made[number + 1 :]),
            taken | {step.new_key} if step.takes_key else taken,
            (*self.order, place),
        )


def keys_at_first(steps: Sequence[Step], lives: Sequence[list[int]]) -> list[bytes]:
    """The keys of the rows that are there before the first step."""
    return [steps[life[0]].old_key for life in lives if steps[life[0]].old]


def are_apart(steps: Sequence[Step], lives: Sequence[list[int]]) -> bool:
    """Whether no two lives begin with a row of the same key."""
    there = keys_at_first(steps, lives)
    return len(set(there)) == len(there)


def search(steps: Sequence[Step], lives: Sequence[list[int]]) -> list[int]:
    """The places of the steps in an order that fits, the first recorded first where it may be;
    empty if none was found.
    """
    if not are_apart(steps, lives):
        return []
    states = [_State((0,) * len(lives), frozenset(keys_at_first(steps, lives)))]
    seen: set[tuple[int, ...]] = set()
    while states and len(seen) * (len(steps) + len(lives)) < WORK_MAX:
        state = states.pop()
        if len(state.order) == len(steps):
            return list(state.order)
        if state.made not in seen:
            seen.add(state.made)
            states += _next(state, steps, lives)
    return []


def _next(state: _State, steps: Sequence[Step], lives: Sequence[list[int]]) -> Iterator[_State]:
    """The states one step on; the one that was recorded first comes last."""
    turns = [
        (lives[number][at], number)
        for number, at in enumerate(state.made)
        if at < len(lives[number])
    ]
    for place, number in sorted(turns, reverse=True):
        step = steps[place]
        if not (step.takes_key and step.new_key in state.taken):
            yield state.after(step, place, number)
