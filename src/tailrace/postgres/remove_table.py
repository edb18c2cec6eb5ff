"""Takes a table out of the publication, for instance before it breaks the application's UPDATE."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tailrace.errors import SourceError
from tailrace.postgres.blockers import listed, lockers
from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.publication import Fingerprint, fingerprint
from tailrace.postgres.quote import identifier, qualified, statement
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error


def remove_table(
    conn: Connection,
    publication: str,
    table: TableInfo,
    *,
    lock_timeout_ms: int,
    before_commit: Callable[[Fingerprint], None],
) -> None:
    """Stop publishing a table. Its writers are not waited for: a transaction that is open meanwhile
    is seen in part, and the table must begin again from a base.

    `before_commit` gets the fingerprint as it will be and makes it durable; if it raises, nothing
    has happened. A lock not won within `lock_timeout_ms` is SourceError(retry=True).
    """
    try:
        with conn.transaction():
            setting = "SELECT set_config('lock_timeout', %s, true)"
            conn.execute(setting, (str(lock_timeout_ms),))
            names = (identifier(publication), qualified(table.schema, table.name))
            conn.execute(statement("ALTER PUBLICATION {} DROP TABLE ONLY {}", *names))
            planned = fingerprint(conn, publication)
            assert planned is not None
            before_commit(planned)
    except psycopg.errors.LockNotAvailable as exc:
        raise SourceError(
            f"{table.qualified} cannot be taken out: {listed(lockers(conn, table.oid))}",
            hint="end these transactions; it is tried again",
            retry=True,
        ) from exc
    except psycopg.Error as exc:
        raise source_error(exc) from exc
