"""What the writing thread asks the source about buffered rows: rarely, so on a new session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import psycopg

from tailrace.control.shapes import BufferShape, read_form, read_shapes
from tailrace.errors import SourceError
from tailrace.log import Reader
from tailrace.log.wanted import WantedBase, want_base
from tailrace.model import Lsn
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


def ask_for_base(dsn: str, store: Store) -> Callable[[int], None]:
    """What to do about a row that nobody can read: its table gets a new base, as of later."""

    def ask(oid: int) -> None:
        try:
            with connect(dsn) as conn:
                position = insert_position(conn)
        except psycopg.Error as error:
            raise source_error(error) from error
        era = Reader(store).tip().source.era
        reason = "a row was buffered while the table was altered, and cannot be read"
        want_base(store, WantedBase(oid, Lsn.of(position, era=era), reason))
        logger.warning("table needs a new base oid=%d reason=%s", oid, reason)

    return ask
