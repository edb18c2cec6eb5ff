"""Are the slot and the publication of our names what we would have made?

Missing ones are no finding: capture makes them. Present ones may have been made or altered by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg.rows import class_row

from tailrace.postgres.finding import Finding, blocker
from tailrace.postgres.publication import published_schemas
from tailrace.postgres.quote import identifier, qualified, shown
from tailrace.postgres.server import Server
from tailrace.postgres.session import Connection
from tailrace.postgres.slot import PLUGIN, SlotState


@dataclass(frozen=True, slots=True)
class PublicationShape:
    """A publication's options, and those of its tables that it does not carry whole."""

    name: str
    owner: str
    is_owned: bool
    for_all_tables: bool
    carries: list[bool]
    via_root: bool
    filtered: list[list[str]]


# Row filters and column lists came with version 15: to_jsonb reads them where they are.
_SHAPE: Final = """
SELECT p.pubname::text AS name,
       pg_get_userbyid(p.pubowner)::text AS owner,
       pg_has_role(p.pubowner, 'USAGE') AS is_owned,
       p.puballtables AS for_all_tables,
       ARRAY[p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate] AS carries,
       p.pubviaroot AS via_root,
       ARRAY(SELECT ARRAY[n.nspname::text, c.relname::text]
               FROM pg_publication_rel AS r
               JOIN pg_class AS c ON c.oid = r.prrelid
               JOIN pg_namespace AS n ON n.oid = c.relnamespace
              WHERE r.prpubid = p.oid
                AND (to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL)
              ORDER BY 1) AS filtered
  FROM pg_publication AS p
 WHERE p.pubname = %s
"""


def publication_findings(
    conn: Connection,
    publication: str,
    server: Server,
    *,
    inserts_only: bool = False,
    is_in_use: bool = False,
) -> list[Finding]:
    """Whether it can be made, or is as we would make it. One that a slot streams is put right table
    by table, and never dropped: capture takes up again what was taken out.
    """
    with conn.cursor(row_factory=class_row(PublicationShape)) as cursor:
        shape = cursor.execute(_SHAPE, (publication,)).fetchone()
    if shape is None:
        return list(_making(server))
    return [
        *_ownership(shape, server),
        *_tables(shape, published_schemas(conn, publication), is_in_use=is_in_use),
        *_options(shape, inserts_only=inserts_only),
    ]


def _making(server: Server) -> Iterator[Finding]:
    if not server.may_create:
        names = (identifier(server.database), identifier(server.role))
        yield blocker(
            f"role {server.role}",
            "may not make a publication",
            shown("GRANT CREATE ON DATABASE {} TO {};", *names),
        )


def _ownership(shape: PublicationShape, server: Server) -> Iterator[Finding]:
    if not shape.is_owned:
        names = (identifier(shape.name), identifier(server.role))
        yield blocker(
            f"publication {shape.name}",
            f"belongs to {shape.owner}, so {server.role} cannot add tables to it",
            shown("ALTER PUBLICATION {} OWNER TO {};", *names),
        )


def _tables(
    shape: PublicationShape, schemas: Sequence[str], *, is_in_use: bool
) -> Iterator[Finding]:
    subject, name = f"publication {shape.name}", identifier(shape.name)
    drop = shown("DROP PUBLICATION {};", name)
    if shape.for_all_tables:
        yield blocker(
            subject, "is FOR ALL TABLES: it publishes tables that were never checked", drop
        )
    for schema in schemas:
        out = shown("ALTER PUBLICATION {} DROP TABLES IN SCHEMA {};", name, identifier(schema))
        yield blocker(
            subject,
            f"has TABLES IN SCHEMA {schema}: it publishes tables that were never checked",
            out if is_in_use else drop,
        )
    for schema, table in shape.filtered:
        out = shown("ALTER PUBLICATION {} DROP TABLE ONLY {};", name, qualified(schema, table))
        yield blocker(
            subject,
            f"leaves out changes: row filter or column list on {schema}.{table}",
            out if is_in_use else drop,
        )


def _options(shape: PublicationShape, *, inserts_only: bool) -> Iterator[Finding]:
    subject, name = f"publication {shape.name}", identifier(shape.name)
    if shape.carries != [True, not inserts_only, not inserts_only, True]:
        kinds = "insert, truncate" if inserts_only else "insert, update, delete, truncate"
        yield blocker(
            subject,
            f"does not publish just {kinds}" if inserts_only else "does not publish every change",
            shown("ALTER PUBLICATION {}", name) + f" SET (publish = '{kinds}');",
        )
    if not shape.via_root:
        yield blocker(
            subject,
            "publishes partitions instead of their root",
            shown("ALTER PUBLICATION {} SET (publish_via_partition_root = true);", name),
        )


def slot_findings(slot: SlotState | None, server: Server) -> list[Finding]:
    """Whether the slot of our name, if there is one, is ours and still of use."""
    if slot is None:
        return []
    subject = f"slot {slot.name}"
    if slot.plugin != PLUGIN or slot.is_temporary or slot.is_two_phase:
        return [blocker(subject, "was not made by tailrace", "choose another source.name")]
    if slot.database != server.database:
        return [
            blocker(subject, f"belongs to database {slot.database}", "choose another source.name")
        ]
    if slot.is_lost:
        message = f"was invalidated ({slot.invalidation}): changes since are lost to it"
        return [blocker(subject, message)]
    return []
