"""An end to waiting for a server that does not answer: it is stopped and its kernel still answers
for it, or a proxy before it hangs. No timeout of the server's ends that, and no keepalive.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

T = TypeVar("T")

_INTERVAL_S: Final = 0.1
"""How often psycopg looks for signals while it waits: its own default."""


class TimedConnection(psycopg.Connection[TupleRow]):
    """A session that is broken off when nothing comes of a request within `answer_s`: when a
    statement has no result, or a piece of a COPY is not taken. None is for ever.
    """

    answer_s: float | None = None

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        """What psycopg waits with, whatever it waits for."""
        if timeout is not None or self.answer_s is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_s)
        except psycopg.errors._WaitTimeout as error:
            # Else the end of the transaction would be asked for, and waited for, as well.
            hang_up(self)
            raise psycopg.OperationalError(
                f"the server has not answered for {self.answer_s:.0f} s"
            ) from error


def hang_up(conn: psycopg.Connection[Any]) -> None:
    """Whatever waits for an answer gets an error, in whichever thread."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(conn.fileno())) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)
