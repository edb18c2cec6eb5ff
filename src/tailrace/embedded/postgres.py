"""Postgres as a part of this process: started on a directory, gone with its owner.

The programs come with a Python package. A small supervisor (see `supervise`) is the parent of the
server and stops it when this process ends, however it ends; a signal typed at the terminal reaches
us, not the server. One lock per data directory, held by the supervisor, keeps two owners apart.
Beside the data directory lie that lock and the server's log.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tailrace.embedded import address, cluster, pidfile, place, supervise
from tailrace.embedded.account import Account
from tailrace.embedded.address import Address
from tailrace.embedded.lock import acquire
from tailrace.errors import ConfigError

StopMode = Literal["smart", "fast", "immediate"]

_START_TIMEOUT_S = 120.0
_LEAVE_TIMEOUT_S = 10.0
_POLL_S = 0.01
_PORT_TRIES = 5
_LOG_BYTES_MAX = 8 << 20


class EmbeddedPostgres:
    """One Postgres server on one data directory. Not for use by several threads at once."""

    def __init__(
        self,
        data_dir: Path,
        *,
        version: int = 18,
        settings: Mapping[str, str] | None = None,
        tcp: bool = False,
    ) -> None:
        self.data_dir = Path(os.path.abspath(data_dir))
        self.version = version
        self.settings = dict(settings or {})
        self._address = Address("", tcp=tcp)
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        """How to connect through the Unix socket; known once started, the same after a restart."""
        if not self._address.socket_dir:
            raise ConfigError("this postgres was never started", hint="call start() first")
        return self._address.dsn

    @property
    def tcp_dsn(self) -> str:
        """How to connect through the loopback port."""
        if not self._address.tcp:
            raise ConfigError("this postgres has no tcp port", hint="make it with tcp=True")
        return self._address.tcp_dsn

    @property
    def bin_dir(self) -> Path:
        """The directory of this version's programs, `psql` and `pgbench` among them."""
        return place.programs(self.version, Account())

    @property
    def log_path(self) -> Path:
        """The file that receives the server's messages."""
        return self._beside(".log")

    @property
    def is_running(self) -> bool:
        """Whether the server that we started is still there."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def start(self) -> None:
        """Make the cluster if need be and start the server; nothing happens if it runs already."""
        if self.is_running:
            return
        self._release()
        lock = acquire(self._beside(".lock"))
        try:
            _clear_stale(self.data_dir)
            account = Account.for_cluster(self.data_dir)
            bin_dir = place.programs(self.version, account)
            directory = cluster.ensure(
                self.data_dir,
                version=self.version,
                bin_dir=bin_dir,
                account=account,
                lock=lock,
                sync=self.settings.get("fsync") != "off",
            )
            cluster.configure(directory, self.settings, account)
            self._start_on_free_port(bin_dir / "postgres", directory, account, lock)
        finally:
            os.close(lock)

    def stop(self, mode: StopMode = "fast", *, timeout_s: float = 30) -> None:
        """Stop the server and wait for its end; one that takes longer is stopped immediately."""
        if self._supervisor is None:
            return
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may have ended by itself
            self._supervisor.stdin.write(f"{mode} {timeout_s}".encode())
        self._supervisor.wait()
        self._release()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same directory; `immediate` is to Postgres what a crash is."""
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Stop the server and delete the cluster with its log."""
        self.stop("immediate")
        shutil.rmtree(self.data_dir.resolve(), ignore_errors=True)
        if self.data_dir.is_symlink():
            self.data_dir.unlink()
        for suffix in (".log", ".lock"):
            self._beside(suffix).unlink(missing_ok=True)

    def _beside(self, suffix: str) -> Path:
        return self.data_dir.with_name(self.data_dir.name + suffix)

    def _start_on_free_port(
        self, postgres: Path, directory: Path, account: Account, lock: int
    ) -> None:
        """Start; a port that was free a moment ago may be taken by now, so try a few."""
        tcp, port = self._address.tcp, self._address.port
        for tries_left in reversed(range(_PORT_TRIES)):
            if tcp:
                port = address.free_port(0 if port == address.SOCKET_ONLY_PORT else port)
            socket_dir = address.socket_dir(directory, account)
            self._address = Address(str(socket_dir), port, tcp)
            fault = self._launch([postgres, "-D", directory], directory, account, lock)
            if fault is None:
                return
            if "TCP/IP socket" not in fault or tries_left == 0:
                raise ConfigError(
                    f"postgres did not start on {self.data_dir}: {fault}",
                    hint=f"its messages are in {self.log_path}",
                )

    def _launch(
        self, command: list[str | Path], directory: Path, account: Account, lock: int
    ) -> str | None:
        """Start the server and wait until it is ready; return what went wrong, if anything."""
        log_start = _trim(self.log_path)
        private_dir = self._address.socket_dir if self._address.socket_dir != str(directory) else ""
        with self.log_path.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", supervise.__file__),
                    *(str(os.getpid()), str(account.uid), str(account.gid)),
                    *(private_dir, *map(str, command), *self._address.options),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=cluster.environment(),
                pass_fds=[lock],
                start_new_session=True,
            )
        try:
            if self._await_ready(directory):
                return None
        except BaseException:
            self.stop("immediate")
            raise
        self.stop("immediate")
        return _fault(self.log_path, log_start)

    def _await_ready(self, directory: Path) -> bool:
        assert self._supervisor is not None and self._supervisor.stdout is not None
        pid = self._supervisor.stdout.readline().strip()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.is_running and time.monotonic() < deadline:
            postmaster = pidfile.read(directory)
            if postmaster and postmaster.is_ready and b"%d" % postmaster.pid == pid:
                return True
            time.sleep(_POLL_S)
        return False

    def _release(self) -> None:
        """Let go of a supervisor that has ended."""
        if self._supervisor is not None:
            with self._supervisor:
                self._supervisor = None


def running_dsn(data_dir: Path) -> str | None:
    """How to connect to the server that any process runs on `data_dir`; None if none does."""
    try:
        postmaster = pidfile.read(data_dir)
    except PermissionError as error:
        raise ConfigError(
            f"{data_dir} belongs to another user", hint="run as the user that started it"
        ) from error
    if postmaster is None or not postmaster.is_ready or not postmaster.is_alive(data_dir):
        return None
    return Address(postmaster.socket_dir, postmaster.port).dsn


def _clear_stale(data_dir: Path) -> None:
    """Wait for a server that lost its supervisor to end, and remove a note that hides its death.

    Postgres itself sees through a note whose process is gone, but not when that process id was
    given to another program.
    """
    deadline = time.monotonic() + _LEAVE_TIMEOUT_S
    try:
        while (postmaster := pidfile.read(data_dir)) and postmaster.is_alive(data_dir):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"a postgres already runs on {data_dir} as process {postmaster.pid}",
                    hint="stop that process, or name another directory",
                )
            time.sleep(_POLL_S)
    except PermissionError as error:
        raise ConfigError(
            f"{data_dir} belongs to another user",
            hint="run as that user, or name another directory",
        ) from error
    if postmaster is not None and postmaster.has_process:
        pidfile.path_in(data_dir).unlink(missing_ok=True)


def _trim(log: Path) -> int:
    """Keep the log from growing without end, and tell where new messages will begin."""
    size = log.stat().st_size if log.exists() else 0
    if size > _LOG_BYTES_MAX:
        log.unlink()
        return 0
    return size


def _fault(log: Path, start: int) -> str:
    """The most telling of the server's last messages, without its time and process."""
    with log.open("rb") as messages:
        messages.seek(start)
        lines = messages.read().decode(errors="replace").splitlines()
    fatal = [line for line in lines if re.search(r"\b(FATAL|PANIC): ", line)]
    telling = (fatal or lines or ["it gave no reason"])[-1]
    # Of a wrong setting, the last message only says that there is one; the first names it.
    if "contains errors" in telling:
        telling = lines[0]
    return re.sub(r"^.*?[A-Z]+: +", "", telling)
