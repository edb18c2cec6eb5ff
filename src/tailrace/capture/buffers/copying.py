"""The rows of a buffer, read by COPY, as the frames that a slot would stream for them.

So there is one way from buffered rows to the log, whichever way they come. A run holds whatever has
to be looked at together: rows of a transaction in which a trigger has touched the same row twice
stand together, after all others of their time, and are not cut apart, unless they are too many to
be kept in memory: then their order cannot be told, and a new base of the table is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import sql

from tailrace.capture.assembly import FrameBuffer
from tailrace.capture.buffers.buffered import joined
from tailrace.capture.buffers.layout import keys_of
from tailrace.capture.buffers.reading import TORN, WantBase
from tailrace.capture.drains.outstanding import Outstanding
from tailrace.control.shapes import read_shapes
from tailrace.model import Column, Relation, ReplicaIdentity
from tailrace.postgres.binaries import Array, pick
from tailrace.postgres.buffer import SCHEMA, buffer, buffer_name
from tailrace.postgres.copy_lines import split_lines, unescaped
from tailrace.postgres.copy_out import copy_out
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import relation_frame
from tailrace.postgres.session import Connection
from tailrace.postgres.tuples import TEXT, Cells

BLOCK_BYTES: Final = 4 << 20

KNOT_BYTES_MAX: Final = 128 << 20
"""More than this of one transaction is not looked at together."""

_HEAD_BYTES: Final = 5

_COLUMNS: Final = """
SELECT attname::text, atttypid::bigint, atttypmod FROM pg_attribute
 WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def read_buffer(
    conn: Connection,
    table_oid: int,
    buffer_oid: int,
    outstanding: Outstanding,
    go_on: Callable[[], None],
    want_base: WantBase,
) -> Iterator[Frames]:
    """What is outstanding of one buffer, in runs: first its Relation frame, then Insert frames.
    `conn` is in the transaction that sees it. The server sends nothing until it has sorted all
    rows: `go_on` is called meanwhile, and may raise. Raises psycopg.Error.
    """
    rows = conn.execute(_COLUMNS, (buffer_oid,)).fetchall()
    columns = tuple(Column(name, kind, typmod, in_identity=False) for name, kind, typmod in rows)
    name = buffer_name(table_oid)
    relation = Relation(buffer_oid, SCHEMA, name, ReplicaIdentity.DEFAULT, columns)
    yield Frames.of([relation_frame(relation)])
    names = [column.name for column in columns]
    knotted = _knotted(conn, table_oid, names, outstanding, go_on)
    query = _copy(table_oid, names, outstanding, knotted)
    held, is_torn = FrameBuffer(), False
    for lines in copy_out(conn, query, block_bytes=BLOCK_BYTES, waiting=go_on):
        assert isinstance(lines, pa.BinaryArray)
        data, cells = split_lines(lines, len(columns))
        data, cells = unescaped(data, cells)
        frames = _inserts(data, cells, buffer_oid)
        xid = _integers(data, cells[1]) if len(knotted) else np.empty(0, np.int64)
        if table_oid in outstanding.logged:
            keep = ~np.isin(_integers(data, cells[0]), outstanding.logged[table_oid])
            frames, xid = frames.select(keep), xid[keep] if len(knotted) else xid
        cut = _cut(xid, knotted) if len(knotted) else len(frames)
        if cut:
            held.add(frames.slice(0, cut))
            yield held.take()
        held.add(frames.slice(cut, len(frames)))
        if held.data_bytes > KNOT_BYTES_MAX:
            if not is_torn:
                want_base(table_oid, TORN)
                is_torn = True
            yield held.take()
    yield held.take()


def _knotted(
    conn: Connection,
    table_oid: int,
    columns: Sequence[str],
    outstanding: Outstanding,
    go_on: Callable[[], None],
) -> NDArray[np.int64]:
    """The transactions whose rows must be looked at together. Few rows may be more than one run as
    well: rows can be large.
    """
    names = {"buffer": buffer(table_oid), "condition": outstanding.condition}
    is_deep = sql.SQL("SELECT EXISTS (SELECT FROM {buffer} WHERE {condition} AND depth > 1)")
    if _texts(conn, is_deep.format(**names), go_on) != [b"t"]:
        return np.empty(0, np.int64)
    query = sql.SQL(
        "SELECT xid::text::bigint FROM {buffer} WHERE {condition} GROUP BY xid "
        "HAVING max(depth) > 1 AND (count(*) > count(DISTINCT key_hash) OR bool_or({changes_key}))"
    ).format(**names, changes_key=_changes_key(conn, table_oid, columns))
    return np.array([int(xid) for xid in _texts(conn, query, go_on)], dtype=np.int64)


def _texts(conn: Connection, query: sql.Composed, go_on: Callable[[], None]) -> list[bytes]:
    """The only column of a query that may take long."""
    copy = sql.SQL("COPY ({}) TO STDOUT").format(query)
    blocks = copy_out(conn, copy, block_bytes=BLOCK_BYTES, waiting=go_on)
    return [text for block in blocks for text in block.to_pylist() if text is not None]


def _changes_key(conn: Connection, table_oid: int, columns: Sequence[str]) -> sql.Composable:
    """Whether a buffered row is an update that has changed what is the key in some shape; of rows
    that are kept whole, whether it has changed anything.
    """
    slots = {
        shape.slots[at]
        for shape in read_shapes(conn, table_oid).values()
        for at in (keys_of(shape) if shape.row is None else [])
    }
    # A shape may be left from an earlier buffer, which had other columns.
    held = ["row", *sorted(slot for slot in slots if f"new_{slot}" in columns)]
    changes = (
        sql.SQL("{}::text IS DISTINCT FROM {}::text").format(
            sql.Identifier(f"new_{slot}"), sql.Identifier(f"old_{slot}")
        )
        for slot in held
    )
    return sql.SQL("op = 'U' AND ({})").format(sql.SQL(" OR ").join(changes))


def _copy(
    table_oid: int, columns: Sequence[str], outstanding: Outstanding, knotted: NDArray[np.int64]
) -> sql.Composed:
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    order: sql.Composable = sql.SQL("seq")
    if len(knotted):
        # A transaction that others have waited for has ended: where it ends it does not cross them.
        xids = sql.Literal(f"{{{','.join(map(str, knotted.tolist()))}}}")
        order = sql.SQL(
            "CASE WHEN xid = ANY ({}::xid8[]) THEN max(seq) OVER (PARTITION BY xid) ELSE seq END, "
            "seq"
        ).format(xids)
    return sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {}) TO STDOUT").format(
        listed, buffer(table_oid), outstanding.condition, order
    )


def _cut(xid: NDArray[np.int64], knotted: NDArray[np.int64]) -> int:
    """How many rows of a block can go; the last transaction may go on in the next block."""
    if not len(xid) or xid[-1] not in knotted:
        return len(xid)
    return int(np.flatnonzero(np.concatenate([[True], xid[1:] != xid[:-1]]))[-1])


def _integers(data: NDArray[np.uint8], cells: Cells) -> NDArray[np.int64]:
    texts = pick(data, cells.start, cells.start + cells.length)
    values: NDArray[np.int64] = texts.cast(pa.string()).cast(pa.int64()).to_numpy()
    return values


def _inserts(data: NDArray[np.uint8], columns: Sequence[Cells], oid: int) -> Frames:
    """One Insert frame for each row: before each value its kind and size, in place of a tab."""
    kind = np.stack([cells.kind for cells in columns], axis=1).reshape(-1)
    start = np.stack([cells.start for cells in columns], axis=1).reshape(-1)
    length = np.stack([cells.length for cells in columns], axis=1).reshape(-1)
    values = joined(len(kind), _heads(kind, length), pick(data, start, start + length))
    _, offset_buffer, value_buffer = values.buffers()
    offsets = np.frombuffer(memoryview(offset_buffer or b""), np.int32)[: len(kind) + 1]
    borders = np.ascontiguousarray(offsets[:: len(columns)])
    buffers = [None, pa.py_buffer(borders.data), value_buffer]
    count = len(columns[0].kind)
    tuples = pa.Array.from_buffers(pa.binary(), count, buffers)
    head = b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", len(columns))
    return _frames(joined(count, head, tuples))


def _heads(kind: NDArray[np.uint8], length: NDArray[np.int64]) -> Array:
    """Kind and size of each value; of NULL, which has no size, the kind alone."""
    heads = np.empty((len(kind), _HEAD_BYTES), dtype=np.uint8)
    heads[:, 0] = kind
    heads[:, 1:] = length.astype(">u4").view(np.uint8).reshape(-1, 4)
    start = np.arange(0, heads.size, _HEAD_BYTES)
    return pick(heads.reshape(-1), start, start + np.where(kind == TEXT, _HEAD_BYTES, 1))


def _frames(values: Array) -> Frames:
    _, offsets, data = values.buffers()
    borders = np.frombuffer(memoryview(offsets or b""), np.int32)[: len(values) + 1]
    found = np.frombuffer(memoryview(data or b""), np.uint8)
    return Frames(found, borders.astype(np.int64), np.zeros(len(values), np.uint64))
