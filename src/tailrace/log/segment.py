"""Segments as bytes: an Arrow IPC file (lz4) of raw frames, with the header in the schema's
metadata.

Invariant, checked when a segment is written and again when it is read: counts, size and checksum
of the frames are those of the header. The header has a checksum of its own, so that a flipped bit
is found by those who read nothing else, and it belongs to the object's name, so that no object can
pass for another.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.errors import SegmentCorrupt
from tailrace.log import layout
from tailrace.log.header import Header, Kind
from tailrace.postgres.frames import ARROW_SCHEMA, Frames
from tailrace.storage import Store

HEAD_BYTES: Final = 16 * 1024
"""How much of a segment is fetched to read its header; a longer header costs a second request."""

HEADER: Final = b"tailrace"
HEADER_CHECKSUM: Final = b"tailrace.header.crc32"
CHECKSUM: Final = b"tailrace.crc32"
_MAGIC: Final = b"ARROW1\0\0"
# One column has nearly all the bytes, so more threads would only take up memory.
WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Segment:
    """A header and the frames it describes."""

    header: Header
    frames: Frames


def encode(header: Header, frames: Frames) -> pa.Buffer:
    """The bytes of a segment."""
    assert header.frame_count == len(frames) and header.data_bytes == frames.data_bytes
    batch = frames.to_arrow()
    text = header.to_json().encode()
    metadata = {
        HEADER: text,
        HEADER_CHECKSUM: hex_checksum(zlib.crc32(text)),
        CHECKSUM: hex_checksum(checksum(text, frames)),
    }
    schema = ARROW_SCHEMA.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=WRITE_OPTIONS) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return sink.getvalue()


def decode(data: bytes | pa.Buffer, *, key: str) -> Segment:
    """Read a whole segment and check it; raises SegmentCorrupt."""
    try:
        buffer = pa.py_buffer(data)
        head = pa.ipc.read_schema(buffer.slice(len(_MAGIC)))
        with pa.ipc.open_file(buffer, options=_READ_OPTIONS) as reader:
            schema = reader.schema
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(key, "is not a whole Arrow file") from error
    if not head.equals(schema, check_metadata=True):
        raise _corrupt(key, "has a head and a foot that differ")
    if len(batches) != 1 or not schema.remove_metadata().equals(ARROW_SCHEMA):
        raise _corrupt(key, "does not have the log's columns")
    header = _header(schema, key)
    try:
        frames = Frames.from_arrow(batches[0])
    except SegmentCorrupt as error:
        raise _corrupt(key, "holds damaged frames") from error
    metadata = schema.metadata or {}
    if metadata.get(CHECKSUM) != hex_checksum(checksum(metadata[HEADER], frames)):
        raise _corrupt(key, "does not match its checksum")
    if header.frame_count != len(frames) or header.data_bytes != frames.data_bytes:
        raise _corrupt(key, "does not hold what its header says")
    return Segment(header, frames)


def read(store: Store, key: str) -> Segment:
    """Fetch and decode; raises ObjectMissing, SegmentCorrupt."""
    return decode(store.get(key), key=key)


def read_header(store: Store, key: str) -> Header:
    """Fetch the head only. The frames are not checked; raises ObjectMissing, SegmentCorrupt."""
    return _header(read_schema(store, key), key)


def read_schema(store: Store, key: str) -> pa.Schema:
    """The schema at the head of an Arrow file, with its metadata; raises ObjectMissing,
    SegmentCorrupt.
    """
    head = store.get(key, length=HEAD_BYTES)
    needed = _head_size(head, key)
    if needed > len(head):
        head = store.get(key, length=needed)
    try:
        return pa.ipc.read_schema(pa.py_buffer(head[len(_MAGIC) :]))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(key, "has a head that cannot be read") from error


def checksum(text: bytes, frames: Frames) -> int:
    """Over the header's text, then the frames: all their LSNs, all their sizes, all their bytes."""
    crc = zlib.crc32(text)
    crc = zlib.crc32(frames.lsn.astype("<u8", order="C", copy=False).data, crc)
    crc = zlib.crc32(np.diff(frames.offsets).astype("<i4").data, crc)
    data = frames.data[frames.offsets[0] : frames.offsets[-1]]
    return zlib.crc32(np.ascontiguousarray(data).data, crc)


def _header(schema: pa.Schema, key: str) -> Header:
    """The header, if its checksum is right and it belongs to an object of this name."""
    metadata = schema.metadata or {}
    text = metadata.get(HEADER, b"")
    if metadata.get(HEADER_CHECKSUM) != hex_checksum(zlib.crc32(text)):
        raise _corrupt(key, "has a head that does not match its checksum")
    header = Header.from_json(text)
    if not _is_named(header, key):
        raise _corrupt(key, f"holds the {header.kind} after {header.start}")
    return header


def _is_named(header: Header, key: str) -> bool:
    match header.kind:
        case Kind.MERGED:
            return key == layout.merged_key(header.start, header.end)
        case Kind.PART:
            return key.startswith(layout.part_prefix(header.start, header.writer))
        case Kind.SEGMENT:
            return key == layout.segment_key(header.start) and header.start > 0
        case Kind.GENESIS:
            return key == layout.GENESIS


def _head_size(head: bytes, key: str) -> int:
    # After the magic come 0xFFFFFFFF, the length of the schema message, and the message.
    if head[:8] != _MAGIC or len(head) < 16:
        raise _corrupt(key, "does not begin as an Arrow file")
    return 16 + int.from_bytes(head[12:16], "little")


def hex_checksum(crc: int) -> bytes:
    """A checksum as it is stored."""
    return f"{crc:08x}".encode()


def _corrupt(key: str, what: str) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{key} {what}", hint="run `tailrace log verify`; restore the object from a backup"
    )
