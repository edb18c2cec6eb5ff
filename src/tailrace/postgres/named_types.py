"""Types that are not built in: their names, and what a domain is made of.

They are asked for by oid, not by table: what a type's oid means does not change with the tables
that use it, so an old Relation frame is described as well as the newest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.model import NamedType
from tailrace.postgres.session import Connection

BUILT_IN_OID_MAX: Final = 9_999
"""Up to here an oid means the same in every database (FirstGenbkiObjectId in access/transam.h);
the domains of information_schema come after it."""

# A domain over a domain has no typmod of its own (getBaseTypeAndTypmod in lsyscache.c).
_TYPES: Final = """
WITH RECURSIVE step (oid, base_oid, base_typmod) AS (
    SELECT oid, typbasetype, typtypmod FROM pg_type
     WHERE oid = ANY (%(oids)s::oid[]) AND typtype = 'd'
     UNION ALL
    SELECT step.oid, t.typbasetype, t.typtypmod
      FROM step JOIN pg_type AS t ON t.oid = step.base_oid AND t.typtype = 'd'
)
SELECT t.oid::bigint, format_type(t.oid, NULL),
       coalesce(last.base_oid, 0)::bigint, coalesce(last.base_typmod, -1)
  FROM pg_type AS t
  LEFT JOIN (SELECT step.* FROM step JOIN pg_type AS b ON b.oid = step.base_oid
              WHERE b.typtype <> 'd') AS last ON last.oid = t.oid
 WHERE t.oid = ANY (%(oids)s::oid[])
 ORDER BY t.oid
"""


def read_named_types(conn: Connection, oids: Iterable[int]) -> dict[int, NamedType]:
    """By oid; built-in types and those that are gone are left out."""
    asked = sorted({oid for oid in oids if oid > BUILT_IN_OID_MAX})
    if not asked:
        return {}
    found = (NamedType(*row) for row in conn.execute(_TYPES, {"oids": asked}))
    return {known.oid: known for known in found}
