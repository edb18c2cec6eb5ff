"""How the messages of a stream come off the connection.

Without encryption they are read straight from the socket into one buffer, many at a time: libpq
hands out one by one, which costs more than all that capture does with them. Encrypted ones come
through libpq, which alone can decrypt them. Neither ever waits.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final, Protocol

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import pq

from tailrace.errors import SourceError
from tailrace.postgres.integers import integers_at
from tailrace.postgres.messages import KEEPALIVE, WAL_DATA, Messages

_COPY_DATA: Final = ord("d")
_COPY_BOTH: Final = b"W"
_ERROR: Final = b"E"
_PASSING: Final = b"NSA"
"""Notice, ParameterStatus and Notification: allowed at any time, and of no use here."""

_HEADER_BYTES: Final = 5
_LENGTH: Final = struct.Struct(">I")
_ANSWER_BYTES_MAX: Final = 256
_MESSAGE_BYTES_MAX: Final = 1 << 30
"""Postgres itself can make none that is longer."""

_BUFFER_BYTES: Final = 64 << 10
_SPARE_FACTOR: Final = 4


class Wire(Protocol):
    """One stream, after START_REPLICATION has been answered."""

    @property
    def is_shallow(self) -> bool:
        """Whether the socket holds some two hundred messages and no more, whatever their size."""
        ...

    @property
    def pending_bytes(self) -> int:
        """How much has been received and not taken yet."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the next `receive` raises: nothing more needs to come for that."""
        ...

    def receive(self, bytes_max: int) -> bool:
        """Take in what is here, about `bytes_max` at most in all; whether that was everything.

        Raises psycopg.Error or SourceError when the stream has ended and all of it was taken.
        """
        ...

    def take(self) -> Messages:
        """The whole messages received since the last call; good until the next `receive`."""
        ...

    def send(self, payload: bytes) -> None:
        """Send a CopyData message; what the socket does not take now goes with the next."""
        ...

    def close(self) -> None:
        """Let go of what is its own."""
        ...


class PlainWire:
    """Reads the socket itself. libpq must not read any more."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)
        self._filled = 0
        self._taken = 0
        self._wanted = 0
        self._unsent = b""
        self._end: Exception | None = None

    @classmethod
    def begin(cls, file: int) -> PlainWire | None:
        """Take over a connection whose START_REPLICATION has been granted.

        None if the answer is another, or not here as a whole: then libpq has to read it.
        """
        connected = socket.socket(fileno=os.dup(file))
        try:
            connected.setblocking(False)
            answer = connected.recv(_ANSWER_BYTES_MAX, socket.MSG_PEEK)
            if answer[:1] == _COPY_BOTH and len(answer) >= _HEADER_BYTES:
                size = 1 + _LENGTH.unpack_from(answer, 1)[0]
                if len(answer) >= size:
                    connected.recv(size)
                    return cls(connected)
        except OSError:
            # Whatever is wrong with it, libpq will say it better.
            pass
        connected.close()
        return None

    @property
    def is_shallow(self) -> bool:
        """See `Wire.is_shallow`: TCP puts what waits together, a Unix socket does not."""
        return self._socket.family == socket.AF_UNIX

    @property
    def pending_bytes(self) -> int:
        """See `Wire.pending_bytes`."""
        return self._filled - self._taken

    @property
    def has_ended(self) -> bool:
        """See `Wire.has_ended`."""
        return self._end is not None

    def receive(self, bytes_max: int) -> bool:
        """See `Wire.receive`."""
        if self._end is not None:
            raise self._end
        self._forget_taken()
        # A message that is longer is read whole.
        limit = max(bytes_max, self._wanted)
        while self._filled < limit:
            if self._read(limit) == 0 or self._filled < limit:
                return True
        return False

    def take(self) -> Messages:
        """See `Wire.take`."""
        self._forget_taken()
        while True:
            bounds = self._bounds()
            foreign = np.flatnonzero(self._buffer[bounds[:-1]] != _COPY_DATA)
            if not len(foreign):
                break
            first = int(foreign[0])
            if self._remove(int(bounds[first]), int(bounds[first + 1])):
                continue
            bounds = bounds[: first + 1]
            break
        self._taken = int(bounds[-1])
        return Messages(self._buffer, bounds, lead=_HEADER_BYTES)

    def send(self, payload: bytes) -> None:
        """See `Wire.send`."""
        header = _COPY_DATA.to_bytes() + _LENGTH.pack(_LENGTH.size + len(payload))
        data = self._unsent + header + payload
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _broken(error) from error
        self._unsent = data[sent:]

    def close(self) -> None:
        """See `Wire.close`."""
        self._socket.close()

    def _read(self, limit: int) -> int:
        """Read once, up to `limit`; how many bytes came."""
        if not limit <= len(self._buffer) <= _SPARE_FACTOR * limit:
            fitting = np.empty(limit, np.uint8)
            fitting[: self._filled] = self._buffer[: self._filled]
            self._buffer = fitting
        try:
            count = self._socket.recv_into(self._buffer[self._filled : limit].data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end = _broken(error)
            return 0
        if count == 0:
            self._end = SourceError("postgres closed the connection", retry=True)
        self._filled += count
        return count

    def _forget_taken(self) -> None:
        """Move what has not been taken to the front."""
        if self._taken:
            rest = self._filled - self._taken
            self._buffer[:rest] = self._buffer[self._taken : self._filled].copy()
            self._filled, self._taken, self._wanted = rest, 0, 0

    def _bounds(self) -> NDArray[np.int64]:
        """Where whole messages end, after a 0 for where the first begins.

        What looks like the beginning of a message nearly always is one. If each of them ends where
        the next one begins, they are all there are; else they are followed one by one.
        """
        if self._filled < self._wanted:
            # Only one message has begun. Looking through all of it whenever a piece of it comes
            # would take longer than the pieces do.
            return np.zeros(1, dtype=np.int64)
        data = self._buffer[: self._filled]
        likely = np.flatnonzero(data[: -_HEADER_BYTES - 1] == _COPY_DATA)
        likely = likely[data[likely + 1] == 0]
        tags = data[likely + _HEADER_BYTES]
        starts: NDArray[np.int64] = likely[(tags == WAL_DATA) | (tags == KEEPALIVE)]
        if not len(starts) or starts[0] != 0:
            return self._followed()
        ends = starts + 1 + integers_at(data, starts + 1, ">u4")
        rest = self._filled - int(ends[-1])
        if rest > _HEADER_BYTES or not np.array_equal(ends[:-1], starts[1:]):
            return self._followed()
        if rest < 0:
            self._want(int(starts[-1]), int(ends[-1]))
            return starts
        return np.concatenate([starts, ends[-1:]])

    def _followed(self) -> NDArray[np.int64]:
        """The same, found message by message."""
        at, ends = 0, [0]
        last = self._filled - _HEADER_BYTES
        data, length_at, add = self._buffer.data, _LENGTH.unpack_from, ends.append
        while at <= last:
            end = at + 1 + length_at(data, at + 1)[0]
            if end > self._filled:
                self._want(at, end)
                break
            add(end)
            at = end
        return np.array(ends, dtype=np.int64)

    def _want(self, start: int, end: int) -> None:
        """A message has begun that is not here as a whole."""
        if end - start > _MESSAGE_BYTES_MAX:
            self._end = SourceError("postgres sent what cannot be read", retry=True)
        else:
            self._wanted = end

    def _remove(self, start: int, stop: int) -> bool:
        """Take a message that is no CopyData out of the buffer; False if it ends the stream."""
        message = self._buffer[start:stop].tobytes()
        if message[:1] in _PASSING:
            rest = self._buffer[stop : self._filled].copy()
            self._filled, self._wanted = start + len(rest), 0
            self._buffer[start : self._filled] = rest
            return True
        self._filled = start
        is_error = message[:1] == _ERROR
        self._end = _server_error(message[_HEADER_BYTES:]) if is_error else ended()
        return False


class LibpqWire:
    """Leaves the reading to libpq, message by message."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._messages: list[memoryview] = []
        self.is_shallow = False
        self.has_ended = False
        self.pending_bytes = 0

    def receive(self, bytes_max: int) -> bool:
        """See `Wire.receive`."""
        if self.has_ended:
            raise self._end()
        get = self._pgconn.get_copy_data
        while True:
            self._pgconn.consume_input()
            before = self.pending_bytes
            while self.pending_bytes < bytes_max:
                count, message = get(1)
                if count <= 0:
                    break
                self._messages.append(message)
                self.pending_bytes += count
            else:
                return False
            if count < 0:
                # What came before the end is handed over; the next call tells of the end.
                self.has_ended = True
                return False
            # What TLS has read ahead does not make the socket readable, so look to the end.
            if self.pending_bytes == before:
                return True

    def take(self) -> Messages:
        """See `Wire.take`."""
        messages, self._messages, self.pending_bytes = self._messages, [], 0
        return Messages.of(messages)

    def send(self, payload: bytes) -> None:
        """See `Wire.send`."""
        self._pgconn.put_copy_data(payload)
        self._pgconn.flush()

    def close(self) -> None:
        """See `Wire.close`."""

    def _end(self) -> psycopg.Error | SourceError:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return psycopg.errors.error_from_result(result)
        return ended()


def ended() -> SourceError:
    """The stream is over, and nobody said why."""
    return SourceError("postgres ended the stream", retry=True)


def _broken(error: OSError) -> SourceError:
    reason = (error.strerror or type(error).__name__).lower()
    return SourceError(f"the connection to postgres broke: {reason}", retry=True)


def _server_error(fields: bytes) -> psycopg.Error:
    """An ErrorResponse as psycopg would raise it: fields are a letter and a text each."""
    found = {
        field[:1]: field[1:].decode(errors="replace") for field in fields.split(b"\0") if field
    }
    try:
        kind = psycopg.errors.lookup(found.get(b"C", ""))
    except KeyError:
        kind = psycopg.OperationalError
    return kind(found.get(b"M", "postgres reported an error"))
