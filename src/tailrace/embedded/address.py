"""The addresses of an embedded server: a Unix socket always, a loopback port if asked for.

The socket's directory follows from the data directory alone, so that it is the same after a
restart. Only the account that runs the server may enter it, which is what makes trusting every
connection safe.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tailrace.embedded.account import Account
from tailrace.errors import ConfigError

SOCKET_ONLY_PORT = 5432
"""Part of the socket's name; it cannot clash, because each socket has a directory of its own."""

_SOCKET_PATH_BYTES_MAX = 107


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    socket_dir: str
    port: int = SOCKET_ONLY_PORT
    tcp: bool = False

    @property
    def dsn(self) -> str:
        """The address of the Unix socket."""
        return f"postgresql://postgres@/postgres?host={quote(self.socket_dir)}&port={self.port}"

    @property
    def tcp_dsn(self) -> str:
        """The address of the loopback port."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def options(self) -> list[str]:
        """What to tell the server on its command line."""
        return [
            f"--port={self.port}",
            f"--unix_socket_directories={self.socket_dir}",
            "--unix_socket_permissions=0700",
            f"--listen_addresses={'127.0.0.1' if self.tcp else ''}",
        ]


def socket_dir(directory: Path, account: Account) -> Path:
    """The data directory itself, or a private one under /tmp if its path is too long or not plain.

    A socket's path has at most 107 bytes, and in a list of hosts or directories some letters have a
    meaning.
    """
    is_plain = re.fullmatch(r"[A-Za-z0-9_./-]+", str(directory)) is not None
    if is_plain and len(f"{directory}/.s.PGSQL.65535.lock") <= _SOCKET_PATH_BYTES_MAX:
        return directory
    private = Path("/tmp") / f"tailrace-{hashlib.sha256(bytes(directory)).hexdigest()[:16]}"
    try:
        private.mkdir(mode=0o700)
        account.give(private)
    except FileExistsError:
        found = private.lstat()
        owner = account.uid if account.is_other else os.geteuid()
        if not private.is_dir() or private.is_symlink() or found.st_uid != owner:
            raise ConfigError(
                f"{private} belongs to somebody else", hint=f"remove {private}"
            ) from None
        private.chmod(0o700)
    return private


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else a port that was free a moment ago."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError("no loopback port is free")
