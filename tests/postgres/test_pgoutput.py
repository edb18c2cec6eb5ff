"""Single frames: read as Postgres writes them, refused when damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import SegmentCorrupt
from tailrace.model import Relation
from tailrace.postgres.pgoutput import (
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    Message,
    Tag,
    TypeName,
    parse_begin,
    parse_commit,
    parse_message,
    parse_relation,
    parse_truncate,
    parse_type,
)
from tests.decode import wire
from tests.model.values import NAMES, OIDS, relations

U64 = st.integers(0, (1 << 64) - 1)
TIMES = st.integers(-(1 << 50), 1 << 50)
PARSERS: dict[Tag, Callable[[bytes], object]] = {
    Tag.BEGIN: parse_begin,
    Tag.COMMIT: parse_commit,
    Tag.RELATION: parse_relation,
    Tag.TRUNCATE: parse_truncate,
    Tag.MESSAGE: parse_message,
    Tag.TYPE: parse_type,
}


@given(U64, TIMES, OIDS)
def test_begin_reads_back(final_lsn: int, ts_us: int, xid: int) -> None:
    frame = b"B" + struct.pack(">QqI", final_lsn, ts_us, xid)
    assert parse_begin(frame) == Begin(final_lsn, ts_us + POSTGRES_EPOCH_US, xid)


@given(U64, U64, TIMES)
def test_commit_reads_back(commit_lsn: int, end_lsn: int, ts_us: int) -> None:
    frame = b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, ts_us)
    assert parse_commit(frame) == Commit(commit_lsn, end_lsn, ts_us + POSTGRES_EPOCH_US)


@given(relations())
def test_relation_reads_back(relation: Relation) -> None:
    assert parse_relation(wire.relation(relation)) == relation


def test_f069_names_that_are_not_utf8_stay_apart_and_printable() -> None:
    def frame(name: bytes) -> bytes:
        return b"R" + struct.pack(">I", 7) + b"s\0" + name + b"\0" + b"d" + struct.pack(">H", 0)

    names = [parse_relation(frame(name)).name for name in (b"a\xff", b"a\xfe", "a\u00ff".encode())]
    assert len(set(names)) == 3
    assert all(name.isprintable() for name in names)


def test_an_empty_schema_is_pg_catalog() -> None:
    relation = b"R" + struct.pack(">I", 7) + b"\0" + b"t\0" + b"d" + struct.pack(">H", 0)
    assert parse_relation(relation).schema == "pg_catalog"
    assert parse_type(b"Y" + struct.pack(">I", 7) + b"\0int4\0").schema == "pg_catalog"


@given(st.lists(OIDS, max_size=6))
def test_truncate_reads_back(oids: list[int]) -> None:
    assert parse_truncate(wire.truncate(*oids)) == tuple(oids)


@given(st.booleans(), U64, st.binary(max_size=9).filter(lambda p: b"\0" not in p), st.binary())
def test_message_reads_back(transactional: bool, lsn: int, prefix: bytes, content: bytes) -> None:
    head = b"M" + struct.pack(">BQ", transactional, lsn) + prefix + b"\0"
    frame = head + struct.pack(">I", len(content)) + content
    assert parse_message(frame) == Message(transactional, lsn, prefix, content)


@given(OIDS, NAMES.filter(bool), NAMES)
def test_type_reads_back(oid: int, schema: str, name: str) -> None:
    frame = b"Y" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
    assert parse_type(frame) == TypeName(oid, schema, name)


FRAMES = [
    wire.begin(),
    wire.commit(1),
    b"R" + struct.pack(">I", 7) + b"s\0t\0d" + struct.pack(">HB", 1, 1) + b"c\0" + bytes(8),
    wire.truncate(1, 2, 3),
    wire.message("tailrace.x", b"content"),
    wire.type_name(7, "mood"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: chr(frame[0]))
def test_a_frame_that_ends_too_early_is_corrupt(frame: bytes) -> None:
    parse = PARSERS[Tag(frame[0])]
    parse(frame)
    for size in range(len(frame)):
        with pytest.raises(SegmentCorrupt):
            parse(frame[:size])


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_frame_is_never_anything_but_corrupt(frame: bytes, data: st.DataObject) -> None:
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    for parse in PARSERS.values():
        try:
            parse(bytes(damaged))
        except SegmentCorrupt:
            continue


@given(st.binary(max_size=60))
@example(b"")
@example(b"T\xff\xff\xff\xff\x00")
def test_any_bytes_are_a_frame_or_corrupt(frame: bytes) -> None:
    for parse in PARSERS.values():
        try:
            parse(frame)
        except SegmentCorrupt:
            continue
