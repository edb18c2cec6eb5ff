"""Threads that trade in the shop, each on a connection of its own, at a rate that can be set.

What is counted as committed is committed: a transaction counts only after Postgres has confirmed
it. One whose confirmation got lost with the connection is counted as uncertain.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from random import Random
from types import TracebackType
from typing import Final, Self

import psycopg

from tailrace.cli.shop.trade import TRADES
from tailrace.errors import TailraceError
from tailrace.postgres.session import source_error

_STOP_S: Final = 1.0
_RECONNECT_S: Final = 0.2
_ABANDONED: Final = 0.05
"""The share of transactions that are rolled back on purpose."""

_SESSION: Final = "SET lock_timeout = '200ms'; SET statement_timeout = '500ms'"
"""A writer is never stuck, so that it can stop; the transaction is rolled back instead."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """What the writers have done so far."""

    transactions: int = 0
    changes: int = 0
    rollbacks: int = 0
    uncertain: int = 0
    reconnects: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Written)))


class Writers:
    """`with Writers(dsn, count=4, rate=200) as writers: …`

    `rate` is in transactions a second for all of them together; None is as fast as it goes. With
    one writer, `seed` decides everything that happens. A lost connection is made again; any error
    that trying again does not help ends the writers and is raised by `stop`.
    """

    def __init__(
        self, dsn: str, *, count: int = 4, rate: float | None = None, seed: int = 1
    ) -> None:
        self._stopping = threading.Event()
        share = None if rate is None else rate / count
        self._writers = [
            _Writer(dsn, Random(seed + number), share, self._stopping) for number in range(count)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        if kind is None:
            self._raise_failure()

    def start(self) -> None:
        """Begin to write."""
        for writer in self._writers:
            writer.start()

    def stop(self) -> Written:
        """End within a second; raises the error that ended a writer before."""
        self._end()
        self._raise_failure()
        return self.written

    @property
    def written(self) -> Written:
        """What has been done so far."""
        return sum((writer.written for writer in self._writers), Written())

    @property
    def trouble(self) -> str:
        """Why a writer has no connection at the moment; empty if all have one."""
        return next((writer.trouble for writer in self._writers if writer.trouble), "")

    def _end(self) -> None:
        self._stopping.set()
        deadline = time.monotonic() + _STOP_S
        for writer in self._writers:
            writer.join(max(0.0, deadline - time.monotonic()))

    def _raise_failure(self) -> None:
        for writer in self._writers:
            if writer.failure is not None:
                raise writer.failure


class _Writer(threading.Thread):
    """Only the thread itself assigns `written`, `trouble` and `failure`; anyone may read them."""

    def __init__(
        self, dsn: str, random: Random, rate: float | None, stopping: threading.Event
    ) -> None:
        super().__init__(name="shop-writer", daemon=True)
        self.written = Written()
        self.trouble = ""
        self.failure: TailraceError | None = None
        self._dsn = dsn
        self._random = random
        self._rate = rate
        self._stopping = stopping

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._trade_until_disconnected()
        except psycopg.Error as error:
            self.failure = source_error(error)
            self._stopping.set()

    def _trade_until_disconnected(self) -> None:
        try:
            with self._connection() as connection:
                for _ in self._beats():
                    self._transact(connection)
        except psycopg.OperationalError as error:
            self.trouble = _first_line(error)
            self.written += Written(reconnects=1)
            _log.info("shop writer reconnects reason=%r", self.trouble)
            self._stopping.wait(_RECONNECT_S)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(
            self._dsn, autocommit=True, connect_timeout=2, application_name="tailrace_shop"
        ) as connection:
            connection.execute(_SESSION)
            self.trouble = ""
            yield connection

    def _beats(self) -> Iterator[None]:
        """One for each transaction that is due, until the end."""
        due = time.monotonic()
        while not self._stopping.is_set():
            yield
            if self._rate is not None:
                # After a pause the missed ones are not made up for.
                due = max(due + 1 / self._rate, time.monotonic() - 1)
                self._stopping.wait(max(0.0, due - time.monotonic()))

    def _transact(self, connection: psycopg.Connection) -> None:
        changes = None
        try:
            with connection.transaction():
                trades = self._random.choices(
                    tuple(TRADES), tuple(TRADES.values()), k=self._random.randint(1, 3)
                )
                total = sum(trade(connection, self._random) for trade in trades)
                if self._random.random() < _ABANDONED:
                    raise psycopg.Rollback
                changes = total
        except psycopg.Rollback:
            # It gets here only if the connection was lost, and then Postgres rolls back by itself.
            assert connection.closed
        except psycopg.Error as error:
            if connection.closed:
                self.written += Written(uncertain=0 if changes is None else 1)
                raise
            if isinstance(error, psycopg.ProgrammingError):
                raise
            changes = None
        if changes is None:
            self.written += Written(rollbacks=1)
        else:
            self.written += Written(transactions=1, changes=changes)


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0]
