"""Segments as bytes: what was written is read, and damage never passes for content."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogError, SegmentCorrupt
from tailrace.log import Header, Kind, Segment, layout, segment
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.log.making import NOTE, SOURCE, START, Wal, begin_writer, shape


@cache
def _sealed() -> tuple[str, bytes, Segment]:
    """A small segment: its key, its bytes, its content."""
    store = MemoryStore()
    header = begin_writer(store).append(Wal().rows(shape(), 3))
    key = layout.segment_key(header.start)
    return key, store.get(key), segment.read(store, key)


def _listed(frames: Frames) -> list[tuple[int, bytes]]:
    return [(int(frames.lsn[i]), frames.frame(i)) for i in range(len(frames))]


def _same(one: Segment, other: Segment) -> bool:
    return one.header == other.header and _listed(one.frames) == _listed(other.frames)


def _stored(key: str, data: bytes) -> Store:
    store = MemoryStore()
    store.put_new(key, data)
    return store


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=8))
def test_any_frames_read_back(frames: list[bytes]) -> None:
    run = Frames.of(frames, list(range(len(frames))))
    header = Header(
        Kind.SEGMENT,
        SOURCE,
        "w",
        START,
        START,
        frame_count=len(run),
        data_bytes=run.data_bytes,
    )
    data = segment.encode(header, run)
    found = segment.decode(data, key=layout.segment_key(START))
    assert _same(found, Segment(header, run))


def test_the_genesis_reads_back() -> None:
    header = Header(Kind.GENESIS, SOURCE, "w", layout.position_of(layout.GENESIS), START, note=NOTE)
    data = segment.encode(header, Frames.empty())
    assert segment.decode(data, key=layout.GENESIS).header == header


def test_a_header_with_a_wrong_count_is_never_written() -> None:
    _, _, sound = _sealed()
    with pytest.raises(AssertionError):
        segment.encode(replace(sound.header, frame_count=1), sound.frames)


def test_f089_every_flipped_byte_is_found_or_changes_nothing() -> None:
    key, data, sound = _sealed()
    found = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        try:
            assert _same(segment.decode(bytes(damaged), key=key), sound), place
        except SegmentCorrupt:
            found += 1
    assert found > len(data) // 3


@settings(max_examples=100)
@given(st.data())
def test_f089_any_damage_is_found_or_changes_nothing(data: st.DataObject) -> None:
    key, sound_bytes, sound = _sealed()
    damaged = bytearray(sound_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(SegmentCorrupt):
        assert _same(segment.decode(bytes(damaged), key=key), sound)
    with suppress(SegmentCorrupt):
        assert segment.read_header(_stored(key, bytes(damaged)), key) == sound.header


def test_f089_a_header_read_alone_is_sound_or_refused() -> None:
    key, data, sound = _sealed()
    found = 0
    head = 16 + int.from_bytes(data[12:16], "little")
    for place in range(head):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        try:
            assert segment.read_header(_stored(key, bytes(damaged)), key) == sound.header, place
        except SegmentCorrupt:
            found += 1
    assert found > head // 2


def test_f089_a_segment_cut_off_anywhere_is_corrupt() -> None:
    key, data, _ = _sealed()
    for size in range(len(data)):
        with pytest.raises(SegmentCorrupt):
            segment.decode(data[:size], key=key)


def test_f089_zeros_and_nothing_are_corrupt() -> None:
    for data in (b"", b"\0", bytes(4096), b"ARROW1\0\0", b"ARROW1\0\0" + bytes(100)):
        with pytest.raises(SegmentCorrupt):
            segment.decode(data, key=layout.segment_key(START))
        with pytest.raises(SegmentCorrupt):
            segment.read_header(_stored("k", data), "k")


def test_the_message_names_the_object() -> None:
    key, data, _ = _sealed()
    with pytest.raises(SegmentCorrupt, match=key) as caught:
        segment.decode(data[:-20], key=key)
    assert "verify" in caught.value.hint


@pytest.mark.parametrize(
    "key",
    [
        layout.segment_key(START + 1),
        layout.merged_key(START, START + 100),
        layout.part_key(START, "writer", 0),
        layout.GENESIS,
    ],
)
def test_an_object_under_another_name_is_refused(key: str) -> None:
    _, data, _ = _sealed()
    with pytest.raises(SegmentCorrupt):
        segment.decode(data, key=key)
    with pytest.raises(SegmentCorrupt):
        segment.read_header(_stored(key, data), key)


def test_a_long_header_is_read_whole(store: Store) -> None:
    tables = [
        shape(16_400 + n, *(f"a rather long column name {i}" for i in range(20))) for n in range(30)
    ]
    wal = Wal()
    frames = Frames.concat([wal.rows(table) for table in tables])
    header = begin_writer(store).append(frames)
    assert len(header.to_json()) > segment.HEAD_BYTES
    assert segment.read_header(store, layout.segment_key(header.start)) == header


def test_another_format_is_not_damage() -> None:
    key, data, _ = _sealed()
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        schema, batch = reader.schema, reader.get_batch(0)
    value = {**json.loads((schema.metadata or {})[b"tailrace"]), "format": 2}
    text = json.dumps(value).encode()
    metadata = {b"tailrace": text, b"tailrace.header.crc32": b"%08x" % zlib.crc32(text)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.with_metadata(metadata)) as writer:
        writer.write_batch(batch.replace_schema_metadata(metadata))
    newer = sink.getvalue().to_pybytes()
    for read in (
        lambda: segment.decode(newer, key=key),
        lambda: segment.read_header(_stored(key, newer), key),
    ):
        with pytest.raises(LogError, match="format 2") as caught:
            read()
        assert not isinstance(caught.value, SegmentCorrupt)


def test_another_arrow_file_is_not_a_segment() -> None:
    batch = pa.record_batch({"lsn": pa.array([1], pa.uint64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(SegmentCorrupt, match="columns"):
        segment.decode(sink.getvalue(), key="k")
    with pytest.raises(SegmentCorrupt):
        segment.read_header(_stored("k", sink.getvalue().to_pybytes()), "k")
