"""Reads the rows of a COPY, in blocks.

Each row comes in a message of its own, and libpq hands them out one by one: half a microsecond each
in Python, as much as the server needs to make a row. Where the session is not encrypted, whole
blocks are taken from its socket instead and cut by numpy; libpq has nothing under way meanwhile.

In text format a newline ends a row and is nowhere else in it, so newlines tell where messages end,
unless one is a byte of a message's length: such a one stands within five bytes after a true one,
where no row can end. Every length is compared with what was found all the same.

Where a block ends follows from the rows alone, not from how they came: whoever reads them again
gets the same blocks.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import pq, sql

from tailrace.postgres.session import Connection

SILENCE_S: Final = 120.0
"""How long the server may send nothing, unless the caller waits as long as it takes."""

POLL_S: Final = 1.0
"""How often such a caller is told that it waits."""

Waiting: TypeAlias = Callable[[], None]

_HEADER_BYTES: Final = 5
_READ_BYTES: Final = 1 << 18
# The server sends 8 KiB at a time. To be woken for each costs both sides as much as the rows in it,
# so a socket that holds little is given a moment to fill.
_LITTLE_BYTES: Final = 1 << 16
_FILL_S: Final = 0.001
_READY: Final = b"Z\0\0\0\x05"
_NEWLINE: Final = 0x0A


def copy_out(
    conn: Connection,
    query: sql.Composable,
    *,
    block_bytes: int,
    waiting: Waiting | None = None,
) -> Iterator[pa.BinaryArray]:
    """The rows of a `COPY … TO STDOUT` in text format, without their newlines, in blocks that end
    with the row that makes them `block_bytes` large, except the last one. If `waiting` is given,
    the server may take any time until it sends rows; it is called meanwhile, and may raise. Raises
    psycopg.Error; a session whose copy was not read to its end must be closed.
    """
    text = query.as_bytes(conn)
    if conn.pgconn.ssl_in_use or conn.pgconn.used_gssapi:
        return _by_libpq(conn.pgconn, text, block_bytes, waiting)
    return _by_socket(conn.pgconn, text, block_bytes, waiting)


def _by_libpq(
    pgconn: pq.abc.PGconn, text: bytes, block_bytes: int, waiting: Waiting | None
) -> Iterator[pa.BinaryArray]:
    pgconn.send_query(text)
    if waiting is not None:
        _await_result(pgconn, waiting)
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        raise _failure(pgconn, result)
    rows: list[bytes] = []
    size = 0
    while (got := pgconn.get_copy_data(0))[0] > 0:
        rows.append(bytes(got[1]))
        size += got[0]
        if size >= block_bytes:
            yield _joined(rows)
            rows, size = [], 0
    if rows:
        yield _joined(rows)
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise _failure(pgconn, result)
    pgconn.get_result()


def _await_result(pgconn: pq.abc.PGconn, waiting: Waiting) -> None:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    pgconn.consume_input()
    while pgconn.is_busy():
        if not poll.poll(POLL_S * 1000):
            waiting()
        pgconn.consume_input()


def _joined(rows: list[bytes]) -> pa.BinaryArray:
    sizes = (len(row) - 1 for row in rows)
    offsets = np.fromiter(accumulate(sizes, initial=0), np.int32, len(rows) + 1)
    return _array(offsets, b"".join(rows).replace(b"\n", b""))


def _array(offsets: NDArray[np.int32], data: bytes) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    made = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    assert isinstance(made, pa.BinaryArray)
    return made


def _failure(pgconn: pq.abc.PGconn, result: pq.abc.PGresult | None) -> psycopg.Error:
    while pgconn.get_result() is not None:
        pass
    if result is None:
        return psycopg.OperationalError("the copy did not begin")
    return psycopg.errors.error_from_result(result)


def _by_socket(
    pgconn: pq.abc.PGconn, text: bytes, block_bytes: int, waiting: Waiting | None
) -> Iterator[pa.BinaryArray]:
    # A timeout leaves the socket as libpq wants it: non-blocking.
    with socket.socket(fileno=os.dup(pgconn.socket)) as link:
        link.settimeout(SILENCE_S)
        try:
            link.sendall(b"Q" + struct.pack(">I", len(text) + 5) + text + b"\0")
            if waiting is not None:
                link.settimeout(POLL_S)
            yield from _Messages(link, block_bytes, waiting).rows()
        except OSError as error:
            raise psycopg.OperationalError(f"the session was lost: {error}") from error


class _Messages:
    """What the server sends until it is ready for the next query."""

    def __init__(self, link: socket.socket, block_bytes: int, waiting: Waiting | None) -> None:
        self._link = link
        self._waiting = waiting
        self._block_bytes = block_bytes
        self._buffer = bytearray(block_bytes + _READ_BYTES)
        self._size = 0
        self._needed = 0
        self._is_over = False
        self._error: psycopg.Error | None = None

    def rows(self) -> Iterator[pa.BinaryArray]:
        while not self._is_over:
            self._receive()
            start = 0
            while not self._is_over:
                received = memoryview(self._buffer)[start : self._size]
                with received:
                    block, step = _cut(received, self._block_bytes)
                if block is not None:
                    yield block
                else:
                    self._needed, step = step, self._take_message(start)
                if not step:
                    break
                start += step
            rest = self._buffer[start : self._size]
            self._buffer[: len(rest)] = rest
            self._size = len(rest)
        if self._error is not None:
            raise self._error

    def _receive(self) -> None:
        """Until the block is full, or the server has no more to say."""
        target = max(self._block_bytes, self._needed, self._size + 1)
        if target + _READ_BYTES > len(self._buffer):
            self._buffer.extend(bytes(target + _READ_BYTES - len(self._buffer)))
        while self._size < target:
            count = self._receive_some()
            if not count:
                # A server that ends the session says why, and is then never ready.
                self._is_over = True
                self._error = psycopg.OperationalError("the server closed the connection")
                self._find_error()
                return
            self._size += count
            if self._buffer[self._size - 6 : self._size - 1] == _READY:
                return
            if count < _LITTLE_BYTES:
                time.sleep(_FILL_S)

    def _receive_some(self) -> int:
        while True:
            try:
                with memoryview(self._buffer) as view:
                    return self._link.recv_into(view[self._size :], _READ_BYTES)
            except TimeoutError:
                if self._waiting is None:
                    raise
                self._waiting()

    def _take_message(self, start: int) -> int:
        """Take one message that is no row; 0 if it is not whole yet, or is a row."""
        if self._size - start < _HEADER_BYTES:
            return 0
        tag, size = struct.unpack_from(">cI", self._buffer, start)
        if tag == b"d" or self._size - start <= size:
            return 0
        if tag == b"E":
            self._error = _parse_error(bytes(self._buffer[start + 5 : start + 1 + size]))
        self._is_over = tag == b"Z"
        return 1 + int(size)

    def _find_error(self) -> None:
        start = 0
        while self._size - start >= _HEADER_BYTES:
            start += self._take_message(start) or self._size
        self._is_over = True


def _cut(view: memoryview, block_bytes: int) -> tuple[pa.BinaryArray | None, int]:
    """The block at the beginning of what was received, and how many bytes it took; None if there is
    none yet, and how many bytes there must be to tell more.
    """
    if len(view) <= _HEADER_BYTES or view[0] != ord("d"):
        return None, 0
    data = np.frombuffer(view, np.uint8)
    starts, ends = _rows_of(view, data)
    last = int(np.searchsorted(ends, block_bytes - 1))
    if last == len(ends):
        # Fewer than a block; if something else than a row follows, there are no more.
        after = int(ends[-1]) + 1 if len(ends) else 0
        is_row_next = len(view) <= after or view[after] == ord("d")
        if is_row_next or not len(ends):
            return None, after + _message_bytes(view[after:])
        last -= 1
    count = last + 1
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0], bounds[1::2], bounds[2::2] = 0, starts[:count] + _HEADER_BYTES, ends[:count]
    # Headers and rows by turns, of which the rows are taken: this copies them together.
    both = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds.data), pa.py_buffer(view)]
    )
    rows = both.take(np.arange(1, 2 * count, 2, dtype=np.int32))
    assert isinstance(rows, pa.BinaryArray)
    return rows, int(ends[last]) + 1


def _rows_of(
    view: memoryview, data: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where the rows at the beginning start, and where they end."""
    ends = np.flatnonzero(data == _NEWLINE).astype(np.int32)
    gaps = np.diff(ends, prepend=-1)
    if len(gaps) and gaps.min() <= _HEADER_BYTES:
        ends = ends[gaps > _HEADER_BYTES]
    starts = np.empty(len(ends), np.int32)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = np.ndarray(len(data) - 4, ">u4", view, 1, (1,))[starts]
    is_row = (data[starts] == ord("d")) & (lengths == ends - starts)
    count = len(ends) if is_row.all() else int(np.argmin(is_row))
    return starts[:count], ends[:count]


def _message_bytes(view: memoryview) -> int:
    """The size of the message that this begins with, as far as it is known."""
    if len(view) < _HEADER_BYTES:
        return _HEADER_BYTES
    return 1 + int(struct.unpack_from(">I", view, 1)[0])


def _parse_error(body: bytes) -> psycopg.Error:
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    state, message = fields.get(b"C", ""), fields.get(b"M", "unknown error")
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return psycopg.DatabaseError(f"{message} ({state})")
