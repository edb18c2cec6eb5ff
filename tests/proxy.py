"""A TCP proxy that does to a connection what networks do: delay, slice, cut, freeze, corrupt.

It stands between capture and Postgres. Faults are set while it runs; those on data concern what the
server sends. A `TlsProxy` behind it gives a server without TLS an encrypted port, so that what
`Proxy` corrupts is what corruption meets in earnest.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_CHUNK = 65_536

T = TypeVar("T")


@dataclass
class Faults:
    """What happens to data from the server; the defaults do no harm."""

    latency_s: float = 0.0
    slice_bytes: int = _CHUNK
    frozen: bool = False
    refuses: bool = False
    """New connections are hung up at once; those that are open stay: see `cut`."""
    cut_after: list[int] = field(default_factory=list)
    """For each new connection the next number: after so many bytes it is cut."""
    corrupt_after: list[int] = field(default_factory=list)
    """For each new connection the next number: the byte there is flipped."""


class _Listener(ABC):
    """An asyncio server in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-proxy")
        self._writers: set[asyncio.StreamWriter] = set()
        self.connection_count = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Break every connection that is open now."""
        self._call(self._abort_all())

    def _call(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._abort_all()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        opened = [writer]
        try:
            await self._relay(reader, writer, opened)
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            # Only ever when the proxy closes: a server of Python 3.11 tells of it as of an error.
            pass
        finally:
            for each in opened:
                self._writers.discard(each)
                each.transport.abort()

    @abstractmethod
    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: list[asyncio.StreamWriter],
    ) -> None:
        """Carry one connection; what is opened on the way goes into `opened`."""

    async def _join(self, up: Coroutine[Any, Any, None], down: Coroutine[Any, Any, None]) -> None:
        """Pump both ways until either ends."""
        tasks = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Proxy(_Listener):
    """Passes bytes on, with faults."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._server_port = port
        self.faults = Faults()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: list[asyncio.StreamWriter],
    ) -> None:
        faults = self.faults
        if faults.refuses:
            return
        cut_after = faults.cut_after.pop(0) if faults.cut_after else None
        corrupt_after = faults.corrupt_after.pop(0) if faults.corrupt_after else None
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        opened.append(server_writer)
        self._writers |= {writer, server_writer}
        down = self._pump_down(server_reader, writer, cut_after, corrupt_after)
        await self._join(_pump(reader, server_writer), down)

    async def _pump_down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut_after: int | None,
        corrupt_after: int | None,
    ) -> None:
        passed = 0
        while data := await reader.read(self.faults.slice_bytes):
            while self.faults.frozen:
                await asyncio.sleep(0.01)
            if self.faults.latency_s:
                await asyncio.sleep(self.faults.latency_s)
            if corrupt_after is not None and passed <= corrupt_after < passed + len(data):
                place = corrupt_after - passed
                data = data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]
            if cut_after is not None and passed + len(data) > cut_after:
                writer.write(data[: cut_after - passed])
                with suppress(OSError):
                    await writer.drain()
                return
            passed += len(data)
            writer.write(data)
            await writer.drain()


class Pooler(Proxy):
    """Tells a client another backend than the one that answers it, as a connection pooler does."""

    async def _pump_down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut_after: int | None,
        corrupt_after: int | None,
    ) -> None:
        while data := await reader.read(_CHUNK):
            head, key_data, rest = data.partition(b"K\x00\x00\x00\x0c")
            if key_data:
                data = head + key_data + bytes([rest[0] ^ 1]) + rest[1:]
            writer.write(data)
            await writer.drain()


class TlsProxy(_Listener):
    """Answers libpq's request for TLS in place of the server."""

    def __init__(self, port: int, directory: Path) -> None:
        super().__init__()
        self._server_port = port
        self.certificate = self_signed(directory)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: list[asyncio.StreamWriter],
    ) -> None:
        self._writers.add(writer)
        await reader.readexactly(8)
        writer.write(b"S")
        await writer.drain()
        await writer.start_tls(self._context)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        opened.append(server_writer)
        self._writers.add(server_writer)
        await self._join(_pump(reader, server_writer), _pump(server_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


def self_signed(directory: Path) -> Path:
    """A key and a certificate, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = directory / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
