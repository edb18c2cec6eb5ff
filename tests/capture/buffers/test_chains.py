"""Changes in any order of recording come out in one in which each goes on from the last."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.capture.buffers.chains import Images, is_continued, neighbours, true_order

Change = tuple[str, str]
"""The row before and after, as `key:version`; empty where there is none."""


def images(changes: list[Change], depths: list[int] | None = None) -> Images:
    """As the translator makes them."""

    def key(row: str) -> bytes:
        return row.split(":")[0].encode()

    columns = (
        [old.encode() for old, _ in changes],
        [new.encode() for _, new in changes],
        [key(old) for old, _ in changes],
        [key(new) for _, new in changes],
    )
    binaries = [pa.array(column, pa.binary()) for column in columns]
    return Images(np.array(depths or [1] * len(changes), np.int64), *binaries)


def in_order(changes: list[Change], depths: list[int] | None = None) -> list[Change]:
    """All of one transaction."""
    return [changes[at] for at in true_order(images(changes, depths), np.arange(len(changes)))]


def history(
    random: Random, count: int, key_count: int, version_count: int | None = None
) -> list[Change]:
    """What a transaction may do to a few rows, in the order in which it does it. Rows are never the
    same twice, unless there are only so many versions of them.
    """
    rows = {f"k{n}": f"k{n}:0" for n in range(key_count) if random.random() < 0.5}
    changes: list[Change] = []
    for version in range(1, count + 1):
        key = f"k{random.randrange(key_count)}"
        old = rows.pop(key, "")
        target = key
        if old and random.random() < 0.2:
            free = [f"k{n}" for n in range(key_count) if f"k{n}" not in rows]
            target = random.choice(free)
        number = version % version_count if version_count else version
        new = "" if old and random.random() < 0.3 else f"{target}:{number}"
        if new:
            rows[target] = new
        changes.append((old, new))
    return changes


def is_sound(changes: list[Change]) -> bool:
    """Each row goes on from what its key held, and nothing takes a key that is not free."""
    held: dict[str, str] = {}
    for old, new in changes:
        old_key, new_key = old.split(":")[0], new.split(":")[0]
        if old:
            if held.get(old_key, old) != old:
                return False
            held[old_key] = ""
        if new:
            if held.get(new_key, ""):
                return False
            held[new_key] = new
    return True


@example(640898520, 5, 4)
@example(38403, 4, 3)
@example(23998, 8, 2)
@settings(max_examples=300)
@given(st.integers(0, 10**9), st.integers(1, 12), st.integers(1, 4))
def test_any_order_of_recording_is_undone(seed: int, count: int, key_count: int) -> None:
    random = Random(seed)
    made = history(random, count, key_count)
    recorded = made.copy()
    random.shuffle(recorded)
    found = in_order(recorded)
    assert sorted(found) == sorted(made)
    assert is_sound(found)


@settings(max_examples=300)
@given(st.integers(0, 10**9), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_what_no_trigger_of_the_user_has_touched_stays_as_recorded(
    seed: int, count: int, key_count: int, version_count: int
) -> None:
    made = history(Random(seed), count, key_count, version_count)
    assert in_order(made) == made


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_sound_order_is_kept(count: int) -> None:
    made = [("", "a:1"), *((f"a:{n}", f"a:{n + 1}") for n in range(1, count)), (f"a:{count}", "")]
    assert in_order(made) == made


@pytest.mark.parametrize("rest", [[], [("b:1", "b:2"), ("", "b:1")]])
def test_a_row_that_is_put_back_as_it_was_stays(rest: list[Change]) -> None:
    """Deleted and inserted again, though the other way round would fit as well."""
    found = in_order([("a:1", ""), ("", "a:1"), *rest])
    assert [change for change in found if "a:1" in change] == [("a:1", ""), ("", "a:1")]


def test_a_row_that_a_trigger_puts_back_stays() -> None:
    """The trigger's insert is recorded before the delete that it was called for."""
    made = [("a:1", ""), ("", "a:1")]
    assert in_order(made[::-1], [2, 1]) == made


@pytest.mark.parametrize("last", [("b:1", "c:1"), ("b:1", "")])
@pytest.mark.parametrize("between", [[], [("", "z:1")], [("z:1", "z:2")]])
def test_a_row_that_a_trigger_has_moved_goes_on_from_there(
    between: list[Change], last: Change
) -> None:
    """The trigger's update is recorded before the insert of its row; the user goes on with it."""
    made, moved = ("", "a:1"), ("a:1", "b:1")
    found = in_order([moved, *between, made, last], [2, *(1 for _ in between), 1, 1])
    assert [change for change in found if change not in between] == [made, moved, last]


@pytest.mark.parametrize("last", [("b:1", "c:1"), ("b:1", "")])
def test_a_row_that_a_trigger_has_put_is_gone_after_a_later_statement(last: Change) -> None:
    """Between the two another statement is recorded: the one that the trigger was called for."""
    put, called_for = ("", "b:1"), ("", "z:1")
    found = in_order([put, called_for, last], [2, 1, 1])
    assert [change for change in found if change != called_for] == [put, last]


@pytest.mark.parametrize("rest", [[], [("c:1", "c:2"), ("", "c:1")]])
def test_a_row_that_takes_the_place_of_one_just_like_it_stays(rest: list[Change]) -> None:
    """As recorded, though the row that has come could be the one that was deleted."""
    made = [("b:1", ""), ("", "a:1"), ("a:1", "b:1")]
    found = in_order([*made, *rest])
    assert [change for change in found if change not in rest] == made


def test_a_row_that_a_trigger_moves_back_stays() -> None:
    made = [("a:1", "b:1"), ("b:1", "a:1")]
    assert in_order(made[::-1], [2, 1]) == made


def test_only_rows_of_one_transaction_and_key_are_neighbours() -> None:
    transaction, key_hash = np.array([1, 1, 2, 1, 2]), np.array([7, 8, 7, 7, 9])
    before, after = neighbours(transaction, key_hash)
    assert (before.tolist(), after.tolist()) == ([0], [3])


def test_neighbours_that_do_not_go_on_from_each_other_are_seen() -> None:
    changes = [("a:1", "a:2"), ("", "a:1"), ("", "b:1"), ("b:1", "b:2")]
    pairs = (np.array([0, 2]), np.array([1, 3]))
    assert is_continued(images(changes), pairs).tolist() == [False, True]
