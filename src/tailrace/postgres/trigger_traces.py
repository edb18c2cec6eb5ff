"""What is left to be seen when triggers of ours were switched off and on again, or made anew.

A row of pg_trigger is written anew by each switch, so its `xmin` is another one, as its oid is when
the trigger is. Both are compared with an earlier look. A rename, or another server, changes them as
well: that cannot be told from a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.postgres.session import Connection

Traces = tuple[tuple[int, str], ...]
"""Of a table and each of its partitions, by oid: its triggers that are enabled always."""

_TRACES: Final = """
WITH RECURSIVE tree (root, oid) AS (
    SELECT asked, asked FROM unnest(%s::oid[]) AS asked
     UNION ALL
    SELECT tree.root, i.inhrelid
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT tree.root::bigint, tree.oid::bigint,
       coalesce(string_agg(format('%%s %%s', t.oid, t.xmin), ', ' ORDER BY t.oid), '')
  FROM tree
  LEFT JOIN pg_trigger AS t
         ON t.tgrelid = tree.oid AND t.tgenabled = 'A'
        AND t.tgfoid = to_regprocedure(format('tailrace_changes.capture_%%s()', tree.root))
 GROUP BY tree.root, tree.oid
 ORDER BY tree.root, tree.oid
"""


def read_traces(conn: Connection, oids: Sequence[int]) -> dict[int, Traces]:
    """Of each of the tables; inside a transaction that switches triggers, as it leaves them."""
    found: dict[int, list[tuple[int, str]]] = {}
    for root, oid, trace in conn.execute(_TRACES, (list(oids),)):
        found.setdefault(root, []).append((oid, trace))
    return {root: tuple(traces) for root, traces in found.items()}


def were_switched(before: Traces, now: Traces) -> bool:
    """Whether it can be told, by what both looks show. What partitions have brought along or taken
    with them is seen elsewhere.
    """
    are_now = dict(now)
    return any(oid in are_now and are_now[oid] != trace for oid, trace in before)
