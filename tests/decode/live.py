"""One database through the decoder, in both ways, and back to text.

`Live` writes through a session as an application has it, and reads through ours: what the stream
and COPY give, and the source's own texts to compare them with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tailrace.decode import TableChanges, decode, decode_base
from tailrace.log.relations import relation_frames
from tailrace.model import ORIGIN, Lsn, Offset, Relation
from tailrace.postgres.copy_out import copy_out
from tailrace.postgres.description import describe
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import parse_relation
from tailrace.postgres.session import Connection, connect
from tests.decode.kinds import KINDS, TYPES_MADE, Kind
from tests.server import Database

END: Final = Offset.whole(1 << 62)
ODD: Final = 'Ed"ge of.it 🙂'
"""A table's name that has to be quoted everywhere."""

_SLOT: Final = "live"
_UNESCAPED: Final = {ord(a): ord(b) for a, b in zip("bfnrtv", "\b\f\n\r\t\v", strict=True)}

Text = bytes | None


@dataclass(frozen=True, slots=True)
class Live:
    """`app` is the application's session, `ours` one as the product makes it."""

    app: psycopg.Connection
    ours: Connection

    @classmethod
    @contextmanager
    def on(cls, database: Database, *, types_made: LiteralString = TYPES_MADE) -> Iterator[Live]:
        """With the types of `kinds`, a slot, and a publication of all tables."""
        dsn = make_conninfo(database.dsn, client_encoding="UTF8")
        with psycopg.connect(dsn, autocommit=True) as app, connect(database.dsn) as ours:
            app.execute(types_made)
            app.execute("CREATE PUBLICATION live FOR ALL TABLES")
            ours.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [_SLOT])
            yield cls(app, ours)

    def create(self, table: str, columns: Mapping[str, str]) -> None:
        """A table with a number for each row, then these columns, by name and type."""
        listed = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in columns.items()
        )
        create = sql.SQL("CREATE TABLE {} (id serial PRIMARY KEY, {})")
        self.app.execute(create.format(sql.Identifier(table), listed))

    def insert(self, table: str, values: Mapping[str, tuple[str, Kind, str | None]]) -> None:
        """A row: for each column its type, its kind and its text."""
        made = [
            sql.SQL(kind.made.replace("%s", "{value}").replace("{}", "{type}")).format(
                value=sql.Literal(text), type=sql.SQL(name)
            )
            for name, kind, text in values.values()
        ]
        self.app.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, values)),
                sql.SQL(", ").join(made),
            )
        )

    def insert_edges(self, table: str) -> list[tuple[str, str | None]]:
        """Every value at the edge of every kind, each in a row of its own; the columns are named
        like their types. What was given, by row.
        """
        self.create(table, {kind: kind for kind in KINDS})
        given = [
            (kind, text)
            for kind, known in KINDS.items()
            for text in (*known.held, *known.unheld, None)
        ]
        with self.app.transaction():
            for kind, text in given:
                self.insert(table, {kind: (kind, KINDS[kind], text)})
        return given

    def frames(self) -> Frames:
        """What the slot has since the last call."""
        rows = self.ours.execute(
            "SELECT (lsn - '0/0')::bigint, data FROM pg_logical_slot_get_binary_changes("
            "%s, NULL, NULL, 'proto_version', '1', 'publication_names', 'live')",
            [_SLOT],
        ).fetchall()
        return Frames.of([data for _, data in rows], [lsn for lsn, _ in rows])

    def streamed(self) -> list[TableChanges]:
        """The same, decoded as capture describes it."""
        frames = self.frames()
        shapes = list(relation_frames(frames).values())
        described = describe(self.ours, [parse_relation(frame) for frame in shapes])
        versions = dict(zip(shapes, described, strict=True))
        return decode(frames, initial={}, versions=versions, after=ORIGIN, upto=END)

    def lines(self, table: str) -> pa.BinaryArray:
        """The rows by number, read as a base reads them."""
        query = sql.SQL("COPY {} TO STDOUT").format(_by_number(table))
        joined = pa.concat_arrays(list(copy_out(self.ours, query, block_bytes=1 << 12)))
        assert isinstance(joined, pa.BinaryArray)
        return joined

    def texts(self, table: str) -> list[list[Text]]:
        """The source's own text of each value, column by column, without `id`."""
        rows = copied(self.ours, _by_number(table))
        return [list(column) for column in zip(*rows, strict=True)][1:]

    def base(self, table: str, relation: Relation) -> pa.Table:
        """The same rows as those of a base."""
        lines = self.lines(table)
        pieces = decode_base(lines, relation, position=Lsn(1 << 40), taken_ts_us=0)
        return pa.concat_tables([piece.rows for piece in pieces])

    def assert_round_trip(self, table: str, changes: TableChanges) -> None:
        """Streamed inserts and a base have the same values, and these are the source's own."""
        base, own = self.base(table, changes.relation), changes.relation.column_names[1:]
        assert base.schema == changes.rows.schema
        assert base["_text"].to_pylist() == changes.rows["_text"].to_pylist()
        for name, texts in zip(own, self.texts(table), strict=True):
            assert self.rendered(changes.rows, name) == texts, name
            assert self.rendered(base, name) == texts, name

    def rendered(self, rows: pa.Table, name: str) -> list[Text]:
        """A typed column, together with `_text`, as Postgres would write it."""
        values = rows.column(name)
        shown: list[Text]
        if pa.types.is_floating(values.type):
            shown = self._float_texts(values.to_pylist(), values.type)
        else:
            shown = [None if value is None else _written(value) for value in values.to_pylist()]
        for row, entries in enumerate(rows.column("_text").to_pylist()):
            text = dict(entries or ()).get(name)
            if text is not None:
                assert shown[row] is None, f"{name} is in its column and in _text"
                is_text = values.type in (pa.string(), pa.large_string(), pa.string_view())
                shown[row] = bytes.fromhex(text[2:]) if is_text else text.encode()
        return shown

    def _float_texts(self, values: Sequence[float | None], kind: pa.DataType) -> list[Text]:
        """Only Postgres writes its shortest digits; it gets the very same float."""
        query = sql.SQL(
            "SELECT format('%s', x) FROM unnest({}::{}[]) WITH ORDINALITY AS u (x, n) ORDER BY n"
        ).format(sql.Literal(list(values)), sql.SQL("float4" if kind == pa.float32() else "float8"))
        texts = [text.encode() for (text,) in self.ours.execute(query)]
        return [None if v is None else text for v, text in zip(values, texts, strict=True)]


def copied(connection: psycopg.Connection, what: sql.Composable) -> list[list[Text]]:
    """The texts of each row of a table or query, as COPY writes them on this connection."""
    with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(what)) as copy:
        data = b"".join(bytes(part) for part in copy)
    return [list(map(_plain, line.split(b"\t"))) for line in data.split(b"\n")[:-1]]


def _by_number(table: str) -> sql.Composed:
    query = sql.SQL("(SELECT * FROM {} ORDER BY id)")
    return query.format(sql.Identifier("public", table))


def _written(value: object) -> bytes:
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None).isoformat(" ")
        plain = plain.rstrip("0") if value.microsecond else plain
        return f"{plain}{'' if value.tzinfo is None else '+00'}".encode()
    # A decimal in full: its text may have an exponent.
    return (f"{value:f}" if isinstance(value, Decimal) else str(value)).encode()


def _plain(cell: bytes) -> Text:
    if cell == b"\\N":
        return None
    plain = bytearray()
    bytes_left = iter(cell)
    for byte in bytes_left:
        if byte == ord("\\"):
            byte = next(bytes_left)
            byte = _UNESCAPED.get(byte, byte)
        plain.append(byte)
    return bytes(plain)
