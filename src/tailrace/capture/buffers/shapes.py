"""What the writing thread asks the source about buffered rows; what is rare on a new session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import psycopg

from tailrace.control.shapes import BufferShape, read_form, read_shapes
from tailrace.errors import SourceError
from tailrace.log import Reader
from tailrace.log.wanted import WantedBase, want_base
from tailrace.model import Lsn, Relation
from tailrace.postgres.catalog import read_tables
from tailrace.postgres.selection import Selection
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection, connect, source_error
from tailrace.storage import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BufferShapes:
    """The shapes that the control schema keeps, and those that rows bring with them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._forms: dict[tuple[int, str], BufferShape] = {}

    def numbered(self, oid: int, number: int) -> BufferShape:
        """A shape by its number; raises SourceError if it is not kept any more."""
        shapes = self._ask(lambda conn: read_shapes(conn, oid))
        if number not in shapes:
            raise SourceError(
                f"shape {number} of table {oid} is not in tailrace.table_shapes, but rows have it",
                hint="was it deleted by hand? then begin a new log",
            )
        return shapes[number]

    def described(self, oid: int, form: str) -> BufferShape:
        """The shape of a row that fitted none."""
        if (oid, form) not in self._forms:
            self._forms[oid, form] = self._ask(lambda conn: read_form(conn, oid, form))
        return self._forms[oid, form]

    def _ask(self, question: Callable[[Connection], T]) -> T:
        try:
            with connect(self._dsn) as conn:
                return question(conn)
        except psycopg.Error as error:
            raise source_error(error) from error


class InsertsOnlyTables:
    """Tells of which tables only inserts are wanted. Asked for every run in which such a table is
    updated, so on one session, opened when it is needed first. Used by one thread.
    """

    def __init__(self, dsn: str, selection: Selection) -> None:
        self._dsn = dsn
        self._selection = selection
        self._conn: Connection | None = None

    def __call__(self, relation: Relation) -> bool:
        """The table is judged as it is now: once it has a key nothing may be left out, though rows
        still come in the shape before. Raises SourceError.
        """
        if relation.has_identity or not self._selection.lists_inserts_only(relation):
            return False
        try:
            if self._conn is None:
                self._conn = connect(self._dsn)
            tables = read_tables(self._conn, [relation.oid])
        except psycopg.Error as error:
            self.close()
            raise source_error(error) from error
        return all(map(self._selection.is_inserts_only, tables))

    def close(self) -> None:
        """End the session, if there is one."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()


def ask_for_base(dsn: str, store: Store) -> Callable[[int, str], None]:
    """What to do about changes that the log cannot have as they were made: their table gets a new
    base, as of later.
    """

    def ask(oid: int, reason: str) -> None:
        try:
            with connect(dsn) as conn:
                position = insert_position(conn)
        except psycopg.Error as error:
            raise source_error(error) from error
        era = Reader(store).tip().source.era
        want_base(store, WantedBase(oid, Lsn.of(position, era=era), reason))
        logger.warning("table needs a new base oid=%d reason=%s", oid, reason)

    return ask
