"""A source with a backlog in its WAL, from which any number of runs start at the same position.

The real daemon makes the publication, the slot and the beginning of the log, then lets go. Its slot
is copied aside before anything is written. Each run then gets a slot of its own, a copy at that
same position, and a log of its own, a copy of that same beginning.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from bench.child import Child
from tailrace.capture.roll import buffer_roll, rolls_of
from tailrace.model import Lsn
from tailrace.postgres.publication import drop_publication
from tailrace.postgres.quote import SourceNames

_RELEASE_TIMEOUT_S: Final = 30.0
_RELEASE_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in the WAL: how many row changes, in how many frames, and where the last commit
    ends.
    """

    changes: int
    frames: int
    frame_bytes: int
    end: Lsn


@dataclass(frozen=True, slots=True)
class Database:
    """An empty database, its two addresses, and the programs of its Postgres."""

    dsn: str
    tcp_dsn: str
    bin_dir: Path

    def address(self, transport: str) -> str:
        """The address over `socket` or `tcp`."""
        return self.dsn if transport == "socket" else self.tcp_dsn


class Source:
    """One publication with its slot kept at one position."""

    _numbers = count(1)

    def __init__(self, name: str, database: Database, directory: Path) -> None:
        self.name = name
        self.database = database
        self.names = SourceNames.of(name)
        self.directory = directory
        self._kept_slot = f"{self.names.slot}_kept"
        self._first_log = directory / f"{name}-log"
        self._is_begun = False

    def begin(self, *, changes: int = 0) -> None:
        """Attach the daemon until it has captured `changes`, then keep slot and log as of now.

        Called again, it goes on from the kept position and keeps a later one.
        """
        if self._is_begun:
            self._take(self.names.slot)
        with self._capture(self._first_log, changes, self.database.dsn) as child:
            child.event("done")
        with self.connect() as conn:
            self._drop(conn, self._kept_slot)
            self._copy(conn, self.names.slot, self._kept_slot)
        self._is_begun = True

    def begin_anew(self) -> None:
        """Forget the log and the slot, and begin both where the WAL ends now: nobody has to catch
        up with what was before.
        """
        with self.connect() as conn:
            for slot in (self.names.slot, self._kept_slot):
                self._drop(conn, slot)
            for roll in (*rolls_of(self.names), buffer_roll(self.names)):
                drop_publication(conn, roll.publication)
        shutil.rmtree(self._first_log, ignore_errors=True)
        self._is_begun = False
        self.begin()

    def connect(self) -> psycopg.Connection:
        """A session, in autocommit."""
        return psycopg.connect(self.database.dsn, autocommit=True)

    @contextmanager
    def slot(self, name: str = "") -> Iterator[str]:
        """A slot of one's own at the kept position."""
        name = name or f"bench_{next(self._numbers)}"
        self._take(name)
        try:
            yield name
        finally:
            with self.connect() as conn:
                self._drop(conn, name)

    @contextmanager
    def capture(
        self,
        transport: str,
        changes: int | None,
        *,
        keep_segments: bool = False,
        log: Path | None = None,
    ) -> Iterator[Child]:
        """The daemon at work on the backlog, with a log of its own, deleted at the end unless it
        is given. Without a number of changes it works until it is stopped, and reports no end.
        """
        place = log or self.new_log()
        try:
            with (
                self.slot(self.names.slot),
                self._capture(
                    place, changes, self.database.address(transport), keep_segments=keep_segments
                ) as child,
            ):
                yield child
        finally:
            if log is None:
                shutil.rmtree(place, ignore_errors=True)

    def new_log(self) -> Path:
        """A copy of the log as it was kept."""
        place = self.directory / f"{self.name}-log-{next(self._numbers)}"
        shutil.copytree(self._first_log, place)
        return place

    def survey(self) -> Backlog:
        """Read the whole backlog once: what it holds, and the server's caches are warm after it."""
        with self.connect() as conn:
            row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        with self.slot() as slot:
            return _survey(self.database.dsn, slot, self.names.publication, Lsn.parse(row[0]))

    def _capture(
        self, log: Path, changes: int | None, dsn: str, *, keep_segments: bool = False
    ) -> Child:
        task = {
            "dsn": dsn,
            "source": self.name,
            "log": log.as_uri(),
            "tables": ["public.*"],
            "changes": changes,
            "keep_segments": keep_segments,
        }
        return Child("capture", task, log=self.directory / "capture.log")

    def _take(self, name: str) -> None:
        """Make `name` a slot at the kept position."""
        with self.connect() as conn:
            self._drop(conn, name)
            self._copy(conn, self._kept_slot, name)

    def _copy(self, conn: psycopg.Connection, slot: str, copy: str) -> None:
        conn.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (slot, copy))

    def _drop(self, conn: psycopg.Connection, slot: str) -> None:
        """Drop a slot if it is there; whoever streamed from it may need a moment to be gone."""
        deadline = time.monotonic() + _RELEASE_TIMEOUT_S
        while True:
            try:
                conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                return
            except psycopg.errors.UndefinedObject:
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RELEASE_POLL_S)


def start_replication(dsn: str, slot: str, publication: str) -> pq.abc.PGconn:
    """A plain replication connection that streams from where the slot is."""
    # Without status messages a long run would be taken for dead.
    target = make_conninfo(dsn, replication="database", options="-c wal_sender_timeout=0")
    connection = pq.PGconn.connect(target.encode())
    if connection.status != pq.ConnStatus.OK:
        raise ConnectionError(connection.get_error_message())
    command = sql.SQL(
        "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {})"
    ).format(sql.Identifier(slot), sql.Literal(publication))
    result = connection.exec_(command.as_bytes())
    if result.status != pq.ExecStatus.COPY_BOTH:
        raise psycopg.errors.error_from_result(result)
    return connection


HEADER_BYTES: Final = 25
ROW_TAGS: Final = frozenset(b"IUD")


def _survey(dsn: str, slot: str, publication: str, until: Lsn) -> Backlog:
    """Read until the server says that it has sent everything before `until`."""
    connection = start_replication(dsn, slot, publication)
    changes = frames = frame_bytes = 0
    end = position = 0
    while position < until:
        size, message = connection.get_copy_data(0)
        if size < 0:
            raise ConnectionError("the stream ended before the backlog did")
        position = int.from_bytes(message[1:9], "big")
        if message[0] != ord("w"):
            continue
        frames += 1
        frame_bytes += size - HEADER_BYTES
        if message[HEADER_BYTES] in ROW_TAGS:
            changes += 1
        elif message[HEADER_BYTES] == ord("C"):
            end = int.from_bytes(message[HEADER_BYTES + 10 : HEADER_BYTES + 18], "big")
            position = max(position, end)
    connection.finish()
    return Backlog(changes, frames, frame_bytes, Lsn(end))
