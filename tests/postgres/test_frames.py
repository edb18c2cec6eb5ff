"""Runs of frames: cut, joined, stored and read back without losing a byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SegmentCorrupt
from tailrace.postgres.frames import ARROW_SCHEMA, DATA_BYTES_MAX, Frames
from tailrace.postgres.messages import Messages
from tailrace.postgres.pgoutput import POSTGRES_EPOCH_US, Tag
from tests.decode import wire

LSNS = st.integers(0, (1 << 64) - 1)
ANY_FRAMES = st.lists(st.tuples(LSNS, st.binary(min_size=1, max_size=40)), max_size=12)

Given = list[tuple[int, bytes]]

_KEEPALIVE = b"k" + bytes(17)


def _of(given_frames: Given) -> Frames:
    return Frames.of([frame for _, frame in given_frames], [lsn for lsn, _ in given_frames])


def _listed(frames: Frames) -> Given:
    return [(int(frames.lsn[i]), frames.frame(i)) for i in range(len(frames))]


def _message(lsn: int, frame: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + frame


@given(ANY_FRAMES)
def test_frames_are_what_the_messages_held(given_frames: Given) -> None:
    messages = [_message(lsn, frame) for lsn, frame in given_frames]
    assert _listed(Frames.from_wal_messages(Messages.of(messages))) == given_frames
    assert (
        _listed(Frames.from_wal_messages(Messages.of([memoryview(m) for m in messages])))
        == given_frames
    )


@given(st.lists(st.one_of(st.none(), st.tuples(LSNS, st.binary(min_size=1, max_size=40)))))
def test_keepalives_between_the_messages_leave_nothing(given_frames: list[Any]) -> None:
    """None stands for a keepalive."""
    messages = [_KEEPALIVE if each is None else _message(*each) for each in given_frames]
    kept = [each for each in given_frames if each is not None]
    assert _listed(Frames.from_wal_messages(Messages.of(messages))) == kept


def test_a_keepalive_as_long_as_a_frame_is_refused() -> None:
    with pytest.raises(SegmentCorrupt):
        Frames.from_wal_messages(Messages.of([_message(1, b"B"), _KEEPALIVE + bytes(8)]))


@pytest.mark.parametrize("size", [0, 1, 24, 25])
def test_a_message_without_a_frame_is_refused(size: int) -> None:
    with pytest.raises(SegmentCorrupt):
        Frames.from_wal_messages(Messages.of([_message(1, b"B"), b"w" * size, _message(1, b"C")]))


@given(st.lists(ANY_FRAMES, max_size=4))
def test_joined_runs_follow_each_other(runs: list[Given]) -> None:
    joined = Frames.concat([_of(run) for run in runs])
    assert _listed(joined) == [frame for run in runs for frame in run]


@given(ANY_FRAMES, st.data())
def test_a_slice_holds_its_frames_and_no_others(given_frames: Given, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(given_frames)))
    stop = data.draw(st.integers(start, len(given_frames)))
    part = _of(given_frames).slice(start, stop)
    assert _listed(part) == given_frames[start:stop]
    assert part.data_bytes == sum(len(frame) for _, frame in given_frames[start:stop])
    assert part.tags.tolist() == [frame[0] for _, frame in given_frames[start:stop]]


@given(ANY_FRAMES, st.data())
def test_slices_put_together_again_are_the_run(given_frames: Given, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(given_frames)))
    run = _of(given_frames)
    assert _listed(Frames.concat([run.slice(0, cut), run.slice(cut, len(run))])) == given_frames


@given(ANY_FRAMES, st.data())
def test_select_keeps_what_is_asked_for(given_frames: Given, data: st.DataObject) -> None:
    size = len(given_frames)
    keep = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    expected = [frame for frame, kept in zip(given_frames, keep, strict=True) if kept]
    assert _listed(_of(given_frames).select(np.array(keep, dtype=bool))) == expected
    start = data.draw(st.integers(0, size))
    part = _of(given_frames).slice(start, size)
    assert _listed(part.select(np.array(keep[start:], dtype=bool))) == [
        frame for frame, kept in zip(given_frames[start:], keep[start:], strict=True) if kept
    ]


@given(ANY_FRAMES, st.data())
def test_arrow_columns_read_back(given_frames: Given, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(given_frames)))
    stop = data.draw(st.integers(start, len(given_frames)))
    part = _of(given_frames).slice(start, stop)
    batch = part.to_arrow()
    batch.validate(full=True)
    assert batch.schema == ARROW_SCHEMA
    assert batch.column(1).to_pylist() == [frame for _, frame in given_frames[start:stop]]
    assert _listed(Frames.from_arrow(batch)) == given_frames[start:stop]


@given(ANY_FRAMES, st.data())
def test_a_slice_of_an_arrow_batch_reads_as_such(given_frames: Given, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(given_frames)))
    batch = _of(given_frames).to_arrow().slice(start)
    assert _listed(Frames.from_arrow(batch)) == given_frames[start:]


def test_more_than_a_segment_can_count_is_refused() -> None:
    # The pages are never touched: nothing is copied before the size is known.
    data = np.zeros(DATA_BYTES_MAX + 1, dtype=np.uint8)
    offsets = np.array([0, len(data)], dtype=np.int64)
    with pytest.raises(OverflowError, match="do not fit"):
        Frames(data, offsets, np.zeros(1, dtype=np.uint64)).to_arrow()


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 2, 9],  # past the end of the data
        [0, 2, 2],  # an empty frame
        [0, 3, 2],  # backwards
        [-1, 2, 3],  # before the data
    ],
)
def test_misplaced_frames_are_damage(offsets: list[int]) -> None:
    # Arrow checks what it is given here, but not what it reads from a file: damage it afterwards.
    places = np.array([0, 2, 4], dtype=np.int32)
    buffers = [None, pa.py_buffer(places.data), pa.py_buffer(b"abcd")]
    frame = pa.Array.from_buffers(pa.binary(), 2, buffers)
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.uint64()), frame], schema=ARROW_SCHEMA)
    places[:] = offsets
    with pytest.raises(SegmentCorrupt):
        Frames.from_arrow(batch)


def test_nulls_are_damage() -> None:
    batch = pa.record_batch(
        [pa.array([1, None], pa.uint64()), pa.array([b"a", b"b"], pa.binary())], schema=ARROW_SCHEMA
    )
    with pytest.raises(SegmentCorrupt):
        Frames.from_arrow(batch)


@given(
    st.lists(
        st.tuples(
            st.integers(0, (1 << 63) - 1),
            st.integers(-(10**15), 10**15),
            st.integers(0, (1 << 32) - 1),
            st.lists(st.integers(0, 3), max_size=5),
        ),
        max_size=5,
    )
)
def test_transactions_and_changes_are_counted_as_they_stand(
    made: list[tuple[int, int, int, list[int]]],
) -> None:
    frames: list[bytes] = []
    counts: list[int] = []
    lasts: list[int] = []
    for end_lsn, ts_us, xid, truncates in made:
        rows = [wire.insert(7, ["x"]), wire.update(7, ["x"]), wire.delete(7, key=["x"])]
        body = [*rows, wire.message(), *(wire.truncate(*range(count)) for count in truncates)]
        frames += [wire.begin(xid, ts_us), *body, wire.commit(end_lsn, ts_us)]
        counts += [0, 1, 1, 1, 0, *truncates, 0]
        lasts.append(len(frames) - 1)
    run = Frames.of(frames)
    transactions = run.transactions
    assert transactions.end_lsn.tolist() == [end_lsn for end_lsn, _, _, _ in made]
    assert transactions.commit_ts_us.tolist() == [ts + POSTGRES_EPOCH_US for _, ts, _, _ in made]
    assert transactions.last_frame.tolist() == lasts
    assert run.xids().tolist() == [xid for _, _, xid, _ in made]
    assert run.change_counts().tolist() == counts


LOOKS: list[Callable[[Frames], Any]] = [
    attrgetter("transactions"),
    Frames.xids,
    Frames.change_counts,
    lambda frames: frames.frames_of(Tag.INSERT, Tag.UPDATE, size=8),
]


@given(
    st.lists(
        st.builds(
            lambda frame, size: frame[:size],
            st.sampled_from(
                [wire.begin(), wire.commit(1), wire.truncate(1, 2), wire.insert(1, ["a"])]
            ),
            st.integers(1, 40),
        )
        | st.binary(min_size=1, max_size=9),
        max_size=6,
    )
)
def test_damaged_frames_are_never_anything_but_corrupt(frames: list[bytes]) -> None:
    run = Frames.of(frames)
    for look in LOOKS:
        try:
            look(run)
        except SegmentCorrupt:
            continue
