"""What a real Postgres sends: the frames of a slot, read through SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.decode import TableChanges, decode
from tailrace.model import ORIGIN, Offset
from tailrace.postgres.frames import Frames

SLOT: Final = "decode_test"
END: Final = Offset.whole(1 << 62)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot and a publication of all tables; reading it leaves it where it is."""

    connection: psycopg.Connection

    @classmethod
    def create(cls, connection: psycopg.Connection, *, via_root: bool = False) -> Slot:
        """Tables may be made before or after."""
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            sql.SQL(
                "CREATE PUBLICATION {} FOR ALL TABLES WITH (publish_via_partition_root = {})"
            ).format(sql.Identifier(SLOT), sql.Literal(via_root))
        )
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        return cls(connection)

    def frames(self) -> Frames:
        """Everything since the slot was made."""
        rows = self.connection.execute(
            "SELECT (lsn - '0/0')::bigint, data "
            "FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s, 'messages', 'true')",
            [SLOT, SLOT],
        ).fetchall()
        return Frames.of([data for _, data in rows], [lsn for lsn, _ in rows])

    def changes(self) -> list[TableChanges]:
        """The same, decoded."""
        return decode(self.frames(), initial={}, versions={}, after=ORIGIN, upto=END)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The changes of one table, under whatever shapes it had."""
        return [
            row
            for each in self.changes()
            if each.relation.qualified == table
            for row in each.rows.to_pylist()
        ]
