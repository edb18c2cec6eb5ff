"""A request and its answer over HTTP, both before one deadline.

The timeout of a socket begins anew with every byte that comes: a receiver that trickles its answer
would hold its stream for as long as it likes. Here each step may take what the ones before it have
left.
"""

from __future__ import annotations

import http
import http.client
import io
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SLICE_BYTES: Final = 64 << 10
"""With TLS a socket's timeout holds for some KiB of what is sent, not for all of it."""

_LAST_LOOK_S: Final = 0.001
_NOT_BEGUN: Final[Any] = None
"""What an answer has for headers until it has begun, though its declared type does not say so."""

_SWITCHING: Final = http.HTTPStatus.SWITCHING_PROTOCOLS
"""What comes behind it is no HTTP; nobody has asked for that."""


class Deadline:
    """When an exchange has to be over."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at = 0.0

    def set(self) -> None:
        """An exchange begins now."""
        self._at = time.monotonic() + self._timeout_s

    def left_s(self) -> float:
        """How long the next step may take. An answer that is there is taken, however late a process
        wakes up: else it would send again what has arrived.
        """
        return max(_LAST_LOOK_S, self._at - time.monotonic())


class _Response(http.client.HTTPResponse):
    """An answer, behind any that say only that one will come: taken for it, they would leave the
    real one to the next request.
    """

    def begin(self) -> None:
        super().begin()
        while self.status < http.HTTPStatus.OK and self.status != _SWITCHING:
            self.headers = self.msg = _NOT_BEGUN
            super().begin()


class Connection(http.client.HTTPConnection):
    """A connection that is kept open; set its deadline before each request."""

    response_class = _Response

    def __init__(
        self, host: str, port: int | None, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        self.default_port = http.client.HTTP_PORT if tls is None else http.client.HTTPS_PORT
        super().__init__(host, port)
        self._tls = tls
        self.deadline = Deadline(timeout_s)

    def connect(self) -> None:
        """With TLS, if that is asked for."""
        self.timeout = self.deadline.left_s()
        super().connect()
        if self._tls is not None:
            self.sock.settimeout(self.deadline.left_s())
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        self.sock = _TimedSocket(self.sock, self.deadline)


class _TimedSocket:
    """What `http.client` needs of a socket."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        for first in range(0, len(data), _SLICE_BYTES):
            self._sock.settimeout(self._deadline.left_s())
            self._sock.sendall(data[first : first + _SLICE_BYTES])

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    """What comes from a socket; as long as it is open, so is the socket."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
