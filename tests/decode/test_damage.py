"""Damaged frames give SegmentCorrupt with a position, and nothing else, whatever the bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.decode import OpenTransaction, decode
from tailrace.errors import SegmentCorrupt
from tailrace.model import ORIGIN, Column, Lsn, Offset, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tests.decode import wire
from tests.decode.reference import reference_decode
from tests.decode.streams import UNTIMED, Draw, Stream, streams

TABLE = Relation(
    16_400,
    "public",
    "orders",
    ReplicaIdentity.DEFAULT,
    (Column("id", 20, -1, True), Column("name", 25, -1, False)),
    ("id",),
)
OID = TABLE.oid
SOUND_INSERT = wire.insert(OID, ["1", "a"])


def run(*frames: bytes, part: OpenTransaction | None = None) -> int:
    """Decode frames whose positions are 0/0, 0/1, ...; how many changes there are."""
    found = decode(
        Frames.of(frames, list(range(len(frames)))),
        initial={OID: TABLE},
        versions={},
        after=ORIGIN,
        upto=Offset.whole(1 << 62),
        open_transaction=part,
    )
    return sum(each.rows.num_rows for each in found)


def in_transaction(*frames: bytes) -> tuple[bytes, ...]:
    return (wire.begin(), *frames, wire.commit(100))


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (b"X", "unknown tag"),
        (b"I\0\0", "an early end"),
        (b"T\0\0\0\0", "an early end"),
        (b"T" + struct.pack(">IBI", 2**32 - 1, 0, OID), "a wrong count of tables"),
        (b"T" + struct.pack(">IBI", 0, 0, OID), "a wrong count of tables"),
        (wire.insert(OID, ["1"]), "a wrong count of columns"),
        (wire.insert(OID, ["1", "2", "3"]), "a wrong count of columns"),
        (SOUND_INSERT[:-1], "a value past the end"),
        (SOUND_INSERT + b"\0", "bytes after the last value"),
        (SOUND_INSERT.replace(b"\0\0\0\1a", b"\xff\xff\xff\xffa"), "a value past the end"),
        (SOUND_INSERT.replace(b"t\0\0\0\1a", b"b\0\0\0\1a"), "an unknown kind of value"),
        (SOUND_INSERT.replace(b"N", b"K"), "an unknown kind of tuple"),
        (wire.delete(OID, key=["1", None]).replace(b"K", b"N"), "an unknown kind of tuple"),
        (wire.update(OID, ["1", "a"], key=["1", None])[:-14], "an update without its new tuple"),
        (wire.update(OID, ["1", "a"], key=["1", None])[:-1], "a value past the end"),
        (wire.insert(OID + 1, ["1", "a"]), f"a change of the unknown table {OID + 1}"),
        (wire.truncate(OID, OID + 1), f"a change of the unknown table {OID + 1}"),
        (wire.relation(TABLE)[:-3], "a relation frame ends too early"),
        (wire.begin(), "a begin or commit out of place"),
        (wire.begin()[:-1], "an early end"),
    ],
)
def test_a_damaged_frame_is_named_by_its_position(frame: bytes, what: str) -> None:
    with pytest.raises(SegmentCorrupt, match=f"{what}.* at 0/2$"):
        run(*in_transaction(SOUND_INSERT, frame, SOUND_INSERT))


@pytest.mark.parametrize(
    "frames",
    [
        (SOUND_INSERT,),
        (wire.truncate(OID),),
        (wire.begin(), SOUND_INSERT),
        (SOUND_INSERT, wire.commit(100)),
        (*in_transaction(), SOUND_INSERT),
        (*in_transaction(SOUND_INSERT), *in_transaction(SOUND_INSERT)),
        (wire.begin(), SOUND_INSERT, wire.commit(1 << 63)),
        (wire.begin(), SOUND_INSERT, wire.commit(100, ts_us=1 << 62)),
    ],
    ids=["row", "truncate", "open", "no begin", "after", "not rising", "far", "never"],
)
def test_changes_without_a_sound_transaction_are_refused(frames: tuple[bytes, ...]) -> None:
    with pytest.raises(SegmentCorrupt, match=" at 0/"):
        run(*frames)


@pytest.mark.parametrize(
    "frames",
    [
        (SOUND_INSERT, wire.begin()),
        (wire.commit(100), SOUND_INSERT),
        (SOUND_INSERT, wire.commit(101)),
        (wire.begin(), wire.begin(), SOUND_INSERT),
    ],
)
def test_a_part_of_another_transaction_is_refused(frames: tuple[bytes, ...]) -> None:
    part = OpenTransaction(Lsn(100), 0, 7, 0)
    assert run(SOUND_INSERT, SOUND_INSERT, part=part) == 2
    assert run(*in_transaction(SOUND_INSERT), part=part) == 1
    with pytest.raises(SegmentCorrupt, match=" at 0/"):
        run(*frames, part=part)


@st.composite
def damaged(draw: Draw, stream: Stream) -> Frames:
    """A few bytes changed, or a frame cut, lengthened, lost or doubled."""
    frames = list(stream.frames)
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(frames) - 1))
        frame = frames[number]
        at = draw(st.integers(0, len(frame) - 1))
        match draw(st.sampled_from(["flip", "flip", "cut", "lengthen", "lose", "double"])):
            case "flip":
                byte = draw(st.sampled_from(b"ntuNKOIUDTBCR\0\1\xff") | st.integers(0, 255))
                frames[number] = frame[:at] + bytes([byte]) + frame[at + 1 :]
            case "cut":
                frames[number] = frame[: max(at, 1)]
            case "lengthen":
                frames[number] = frame + draw(st.binary(min_size=1, max_size=9))
            case "lose" if len(frames) > 1:
                del frames[number]
            case _:
                frames.insert(number, frame)
    return Frames.of(frames, list(range(len(frames))))


@UNTIMED
@given(streams().filter(lambda stream: bool(stream.frames)), st.data())
def test_any_damage_is_found_or_harmless(stream: Stream, data: st.DataObject) -> None:
    frames = data.draw(damaged(stream))
    asked: dict[str, Any] = {"after": ORIGIN, "upto": Offset.whole((1 << 63) - 1)}
    asked |= {"initial": stream.initial, "versions": stream.versions}
    try:
        expected = [len(each.rows) for each in reference_decode(frames, **asked)]
    except SegmentCorrupt:
        expected = None
    try:
        found = [each.rows.num_rows for each in decode(frames, **asked)]
    except SegmentCorrupt as error:
        assert expected is None
        assert " at 0/" in str(error)
    else:
        # Without a change to decode, Relation frames are not looked at.
        assert found == expected or (found == [] and expected is None)
