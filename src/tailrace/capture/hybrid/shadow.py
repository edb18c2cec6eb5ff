"""The shadow phase: both captures of a table run, and are compared before the one is given up.

A temporary slot of our own streams the table, through a publication that nothing else uses, and its
buffer. The buffer's rows are translated to the frames that the table itself would have sent, and
compared with those that it did send. The log and its slot have no part in this; when the session
ends, however it ends, the slot is gone.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Final

import numpy as np
import psycopg
from numpy.typing import NDArray

from tailrace.capture.buffers.reading import Shapes
from tailrace.capture.buffers.translate import Translator
from tailrace.capture.hybrid.shadow_rows import changes_by_key, difference
from tailrace.errors import TailraceError
from tailrace.model import Lsn
from tailrace.postgres.buffer import table_of_buffer
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_relation
from tailrace.postgres.publication import drop_publication
from tailrace.postgres.quote import SourceNames, identifier, qualified, statement
from tailrace.postgres.session import connect

LOCK_TIMEOUT: Final = "2s"
"""How long the making of the slot waits for each transaction that is open."""

CHANGES_MAX: Final = 50_000
"""Postgres is asked for so many changes at a time, or a whole transaction."""

_OID_END: Final = 5

_MAKE: Final = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)"
_READ: Final = """
SELECT lsn::text, data
  FROM pg_logical_slot_get_binary_changes(%(slot)s, NULL, %(changes)s, 'proto_version', '1',
                                          'publication_names', %(publications)s)
"""


class Shadow:
    """One table's; ends with `close`. `compared` counts the keys of transactions that agreed."""

    def __init__(self, dsn: str, names: SourceNames, table: TableInfo, shapes: Shapes) -> None:
        self._table = table
        self._publications = (names.shadow, names.buffers)
        self._slot = f"tailrace_shadow_{secrets.token_hex(8)}"
        self._shapes = shapes
        self._unreadable: set[int] = set()
        self._conn = connect(dsn, settings={"lock_timeout": LOCK_TIMEOUT})
        self.compared = 0
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        self.began = time.monotonic()

    def look(self) -> str:
        """Compare all that has come since the last look; what differs, in words, or nothing."""
        names = ",".join(f'"{name}"' for name in self._publications)
        asked = {"slot": self._slot, "changes": CHANGES_MAX, "publications": names}
        while rows := self._conn.execute(_READ, asked).fetchall():
            lsns = [int(Lsn.parse(lsn)) for lsn, _ in rows]
            fault = self._compare(Frames.of([data for _, data in rows], lsns))
            if fault:
                return fault
        return ""

    def close(self) -> None:
        """Leave nothing behind."""
        with suppress(psycopg.Error, TailraceError):
            drop_publication(self._conn, self._publications[0])
        self._conn.close()

    def _make(self) -> None:
        conn, publication = self._conn, identifier(self._publications[0])
        drop_publication(conn, self._publications[0])
        query = "CREATE PUBLICATION {} WITH (publish_via_partition_root = true)"
        conn.execute(statement(query, publication))
        name = qualified(self._table.schema, self._table.name)
        conn.execute(statement("ALTER PUBLICATION {} ADD TABLE ONLY {}", publication, name))
        # It waits for every transaction that was open: none is seen in part.
        conn.execute(_MAKE, (self._slot,))

    def _compare(self, frames: Frames) -> str:
        is_buffered = _of_buffers(frames)
        tags = frames.tags
        is_frame = (tags == Tag.BEGIN) | (tags == Tag.COMMIT)
        # Each read describes all tables again, and so each needs a translator of its own.
        translator = Translator(self._shapes, unreadable=self._unreadable.add)
        translated = translator.translate(frames.select(is_buffered | is_frame))
        if self._unreadable:
            return "a buffered row cannot be read: the table was altered beside its writer"
        by_trigger = changes_by_key(translated, self._table.oid)
        by_wal = changes_by_key(frames.select(~is_buffered), self._table.oid)
        fault = difference(by_trigger, by_wal)
        self.compared += 0 if fault else len(by_wal)
        return fault


def _of_buffers(frames: Frames) -> NDArray[np.bool_]:
    """For each frame, whether it describes a buffer or is a row of one."""
    relations = (frames.frame(int(at)) for at in np.flatnonzero(frames.tags == Tag.RELATION))
    parsed = map(parse_relation, relations)
    buffers = {each.oid for each in parsed if table_of_buffer(each.schema, each.name)}
    found = np.zeros(len(frames), dtype=np.bool_)
    places = frames.frames_of(Tag.RELATION, Tag.INSERT, size=_OID_END)
    found[places] = np.isin(frames.integers(places, 1, ">u4"), list(buffers))
    return found
