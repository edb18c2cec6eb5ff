"""Would a target database take what a stream delivers? Nothing is changed to find out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.errors import SinkError
from tailrace.postgres.finding import Finding, blocker
from tailrace.postgres.quote import identifier, qualified, shown
from tailrace.postgres.session import Connection
from tailrace.sinks.postgres.options import PostgresOptions
from tailrace.sinks.postgres.sessions import Sessions
from tailrace.sinks.postgres.watermark import SCHEMA, is_set_up

VERSION_MIN: Final = 15
"""The first with MERGE."""

_SERVER: Final = """
SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),
       current_database(), current_user,
       has_database_privilege(current_database(), 'CREATE'),
       has_database_privilege(current_database(), 'TEMPORARY')
"""
_SCHEMAS: Final = """
SELECT nspname, has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')
FROM pg_namespace WHERE nspname = ANY (%s)
"""
_TABLES: Final = """
SELECT n.nspname, c.relname, c.oid::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))
ORDER BY 1, 2
"""


def check_target(
    options: PostgresOptions, subject: str, tables: Iterable[tuple[str, str]]
) -> Iterator[Finding]:
    """What stands in the way; `tables` are the targets, by schema and name."""
    sessions = Sessions(options.dsn)
    try:
        with sessions.transaction() as conn:
            yield from _findings(conn, subject, list(tables))
    except SinkError as error:
        yield blocker(subject, str(error), error.hint)
    finally:
        sessions.close()


def _findings(conn: Connection, subject: str, tables: list[tuple[str, str]]) -> Iterator[Finding]:
    row = conn.execute(_SERVER).fetchone()
    assert row is not None, "a query without a table has a row"
    version, is_standby, database, role, may_create, may_use_temporary = row
    if version < VERSION_MIN:
        fix = f"deliver to Postgres {VERSION_MIN} or later"
        yield blocker(subject, f"the target database is Postgres {version}, without MERGE", fix)
    if is_standby:
        fix = "point dsn of the sink at the primary"
        yield blocker(subject, "the target database is a standby, which takes no writes", fix)
    names = identifier(database), identifier(role)
    if not may_use_temporary:
        fix = shown("GRANT TEMPORARY ON DATABASE {} TO {};", *names)
        yield blocker(subject, f"role {role} may not make temporary tables in the target", fix)
    schemas = sorted({SCHEMA, *(schema for schema, _ in tables)})
    found: dict[str, bool] = dict(conn.execute(_SCHEMAS, (schemas,)).fetchall())
    missing = [schema for schema in schemas if schema not in found]
    if missing and not may_create:
        fix = shown("GRANT CREATE ON DATABASE {} TO {};", *names)
        yield blocker(subject, f"role {role} may not make schema {missing[0]} in the target", fix)
    for schema, is_usable in found.items():
        if not is_usable:
            fix = shown("GRANT CREATE, USAGE ON SCHEMA {} TO {};", identifier(schema), names[1])
            yield blocker(subject, f"role {role} may not make tables in schema {schema}", fix)
    yield from _foreign(conn, subject, tables)


def _foreign(conn: Connection, subject: str, tables: list[tuple[str, str]]) -> Iterator[Finding]:
    """Tables that are there and not ours: the source's own, if the dsn is the source's."""
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    there = conn.execute(_TABLES, (schemas, names)).fetchall()
    ours: set[int] = set()
    if is_set_up(conn):
        rows = conn.execute("SELECT target::bigint FROM tailrace_sink.targets").fetchall()
        ours = {oid for (oid,) in rows}
    for schema, name, oid in there:
        if oid not in ours:
            fix = shown(
                "DROP TABLE {};  -- or another schema for the sink", qualified(schema, name)
            )
            yield blocker(
                subject, f"table {schema}.{name} of the target was not made by this sink", fix
            )
