"""The parent of an embedded Postgres: it lives just long enough to stop the server after its owner.

The owner holds the write end of our standard input. An order ("fast 30": the way to stop, and the
seconds until harsher means) comes through it; its end, by whatever death of the owner, is the order
to stop fast. If we ourselves are killed, the kernel sends Postgres SIGQUIT (PR_SET_PDEATHSIG, Linux
only). So no server survives the program that started it.

The process that runs this file imports nothing but the standard library and is started by path, so
that it is there in milliseconds and does not depend on the owner's environment. Whatever
descriptors the owner passed (its lock on the data directory) stay open here and are not given to
Postgres: the lock is held exactly as long as the server has a parent.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

STOP_SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "kill": signal.SIGKILL,
}
"""What the postmaster takes as an order to stop, from the mildest on."""

_ORDER_OF_THE_DEAD = "fast 10"
_HARSHER_AFTER_S = 10.0
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Run `command` as `user` until its end or an order, and return its exit code."""
    owner, user, group, socket_dir, *command = arguments
    signals = _signal_pipe()
    server = _spawn(command, user=int(user), group=int(group))
    os.write(sys.stdout.fileno(), b"%d\n" % server.pid)
    order = _await_order(server, owner=int(owner), signals=signals)
    _stop(server, order)
    if socket_dir:
        shutil.rmtree(socket_dir, ignore_errors=True)
    return server.returncode


def _signal_pipe() -> int:
    """Turn SIGCHLD and SIGTERM into bytes on a pipe that `select` can wait for."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return read_end


def _spawn(command: list[str], *, user: int, group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd="/",  # our own directory may be closed to the account Postgres runs as
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # the log; our output is a pipe to the owner
        user=user if user >= 0 else None,
        group=group if group >= 0 else None,
        extra_groups=[] if user >= 0 else None,
        # Python runs this after the change of account, which would clear the death signal; and
        # there are no threads here that could make it unsafe.
        preexec_fn=_die_with_parent(),
    )


def _die_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def _await_order(server: subprocess.Popen[bytes], *, owner: int, signals: int) -> str:
    """Wait for an order, the end of the owner, or the end of the server."""
    control = sys.stdin.fileno()
    # The parent's id is watched too: a forked child of the owner may hold the pipe open after the
    # owner's death.
    while server.poll() is None and os.getppid() == owner:
        readable, _, _ = select.select([control, signals], [], [], 1)
        if control in readable:
            return os.read(control, 100).decode() or _ORDER_OF_THE_DEAD
        if signals in readable and signal.SIGTERM in os.read(signals, 100):
            break
    return _ORDER_OF_THE_DEAD


def _stop(server: subprocess.Popen[bytes], order: str) -> None:
    """Stop as ordered, then harder: a reader that stalls can hold up a fast stop for ever."""
    mode, _, patience_s = order.partition(" ")
    modes = [mode, "immediate", "kill"] if mode in ("smart", "fast") else [mode, "kill"]
    for step, mode in enumerate(modes):
        server.send_signal(STOP_SIGNALS[mode])
        try:
            server.wait(timeout=float(patience_s) if step == 0 else _HARSHER_AFTER_S)
        except subprocess.TimeoutExpired:
            continue
        return
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
