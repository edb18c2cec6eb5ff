"""The changes of rows as walks through their images: each begins where the one before it ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one row."""

    old: bytes
    new: bytes
    old_key: bytes
    new_key: bytes
    depth: int

    @property
    def takes_key(self) -> bool:
        """Whether a key that was free has a row afterwards."""
        return bool(self.new) and (not self.old or self.old_key != self.new_key)

    @property
    def leaves_key(self) -> bool:
        """Whether a key that had a row is free afterwards."""
        return bool(self.old) and (not self.new or self.old_key != self.new_key)


def lives_of(steps: Sequence[Step], *, put_back: bool) -> list[list[int]]:
    """The steps as walks in which each begins with the image that the one before it has left: the
    first is an insert, or finds a row that was there before. With `put_back`, what looks like a row
    that was deleted and put back as it was is taken for one.
    """
    leaving: dict[bytes, list[int]] = defaultdict(list)
    surplus: Counter[bytes] = Counter()
    # The last of a list goes first: as recorded, but who deletes the row goes last.
    for place in sorted(range(len(steps)), key=lambda p: (not steps[p].new, p), reverse=True):
        if steps[place].old:
            leaving[steps[place].old].append(place)
            surplus[steps[place].old] += 1
        surplus[steps[place].new] -= 1
    there = _there_before(steps, surplus) if put_back else []
    lives = [_walk(start, leaving, steps) for start in there if leaving[start]]
    for place, step in enumerate(steps):
        if not step.old:
            lives.append([place, *_walk(step.new, leaving, steps)])
    olds = [step.old for step in steps if step.old]
    for start in [old for old in olds if surplus[old] > 0] + olds:
        while leaving[start]:
            lives.append(_walk(start, leaving, steps))
    return lives


def _there_before(steps: Sequence[Step], surplus: Counter[bytes]) -> list[bytes]:
    """Rows that were deleted and then put back as they were. They look like rows that were put and
    then deleted; the first step tells.
    """
    balance: Counter[bytes] = Counter()
    plain: set[bytes] = set()
    first: dict[bytes, int] = {}
    for place in sorted(range(len(steps)), key=lambda p: (steps[p].depth, p)):
        step = steps[place]
        for key in {step.old_key if step.old else step.new_key, step.new_key or step.old_key}:
            first.setdefault(key, place)
        if step.takes_key:
            balance[step.new_key] += 1
        if step.leaves_key:
            balance[step.old_key] -= 1
        if step.old and surplus[step.old] > 0:
            plain.add(step.old_key)
    found = (steps[place] for key, place in first.items() if key not in plain and not balance[key])
    return [step.old for step in found if step.old]


def _walk(start: bytes, leaving: dict[bytes, list[int]], steps: Sequence[Step]) -> list[int]:
    """On from an image as far as it goes, then with the detours that come back to their place."""
    walked = _straight(start, leaving, steps)
    for at in range(len(walked), -1, -1):
        image = steps[walked[at - 1]].new if at else start
        while leaving[image]:
            detour = _straight(image, leaving, steps)
            if steps[detour[-1]].new != image:
                for place in reversed(detour):
                    leaving[steps[place].old].append(place)
                break
            walked[at:at] = detour
    return walked


def _straight(image: bytes, leaving: dict[bytes, list[int]], steps: Sequence[Step]) -> list[int]:
    walked: list[int] = []
    while image and leaving[image]:
        walked.append(leaving[image].pop())
        image = steps[walked[-1]].new
    return walked
