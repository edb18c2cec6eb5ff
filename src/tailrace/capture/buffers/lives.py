"""The changes of rows as walks through their images: each begins where the one before it ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOOP_MAX: Final = 1_000
"""How many changes a row is followed through, to see whether it comes back to what it was."""


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
    def is_move(self) -> bool:
        """Whether a row goes from one key to another."""
        return bool(self.old) and self.takes_key

    @property
    def kind(self) -> tuple[bool, bool]:
        """Equal for all changes of one statement, as a rule: insert, update or delete."""
        return bool(self.old), bool(self.new)

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
    looked_at = [
        place
        for key, place in first.items()
        if key not in plain and not balance[key] and steps[place].old
    ]
    back = _Returns(steps) if looked_at else None
    return [steps[place].old for place in looked_at if back is not None and back.has(place)]


class _Returns:
    """Tells whether the image that a step has found was put back after it: as recorded, or by a
    trigger, which is then recorded before it. The same is recorded if the trigger has put the image
    there first, and the step is that of a later statement. If another change of the user's, of
    another kind, is recorded between the two, it is a later statement. If the trigger has moved
    another row there, that would have to be the very image of the row that was there; a row that
    goes on from there always has it.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._makers: dict[bytes, list[int]] = defaultdict(list)
        self._next: dict[bytes, list[int]] = defaultdict(list)
        for place, step in enumerate(steps):
            self._makers[step.new].append(place)
            self._next[step.old].append(place)
        self._other_before = _other_kind_before(steps)

    def has(self, place: int) -> bool:
        """Whether some step puts back what the one at `place` has found."""
        return any(self._is_by(maker, place) for maker in self._makers[self._steps[place].old])

    def _is_by(self, maker: int, place: int) -> bool:
        if maker > place:
            return True
        if self._steps[maker].is_move and not self._leads_to(place, maker):
            return False
        return maker > self._other_before[place]

    def _leads_to(self, place: int, maker: int) -> bool:
        """Whether the row itself comes back, by way of the step `maker`."""
        seen: set[int] = set()
        ahead = [place]
        while ahead and len(seen) < LOOP_MAX:
            at = ahead.pop()
            if at == maker:
                return True
            if at not in seen and self._steps[at].new:
                seen.add(at)
                ahead += self._next[self._steps[at].new]
        return False


def _other_kind_before(steps: Sequence[Step]) -> list[int]:
    """For each step the place of the last one before it, no deeper than it, of another kind; -1 if
    there is none.
    """
    last: dict[tuple[int, tuple[bool, bool]], int] = {}
    places = []
    for place, step in enumerate(steps):
        others = (
            at for (depth, kind), at in last.items() if depth <= step.depth and kind != step.kind
        )
        places.append(max(others, default=-1))
        last[step.depth, step.kind] = place
    return places


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
