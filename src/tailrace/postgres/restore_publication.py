"""Makes a publication again what we would have made, whatever somebody else did to it.

What was streamed meanwhile may lack rows or columns. So a table that is in doubt is taken out, and
must begin again from a base; to put its membership right would leave a gap that nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tailrace.postgres.catalog import read_tables
from tailrace.postgres.publication import INSERTS, WHOLE, published_schemas
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection

_GENERATED_VERSION_MIN: Final = 180000


def restore_publication(
    conn: Connection,
    publication: str,
    doubtful: Iterable[int],
    *,
    inserts_only: bool,
    lock_timeout_ms: int,
    before_commit: Callable[[], None],
) -> None:
    """Set its options, and take out tables and whole schemas; raises psycopg.Error.
    `before_commit` makes durable what it is going to look like.
    """
    name = identifier(publication)
    options = INSERTS if inserts_only else WHOLE
    if conn.info.server_version >= _GENERATED_VERSION_MIN:
        options += ", publish_generated_columns = none"
    with conn.transaction():
        conn.execute("SELECT set_config('lock_timeout', %s, true)", (str(lock_timeout_ms),))
        conn.execute(statement(f"ALTER PUBLICATION {{}} SET ({options})", name))
        for schema in published_schemas(conn, publication):
            drop = "ALTER PUBLICATION {} DROP TABLES IN SCHEMA {}"
            conn.execute(statement(drop, name, identifier(schema)))
        for table in read_tables(conn, doubtful):
            place = qualified(table.schema, table.name)
            conn.execute(statement("ALTER PUBLICATION {} DROP TABLE ONLY {}", name, place))
        before_commit()
