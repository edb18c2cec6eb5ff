"""Bases that are being taken now, as the session that holds their snapshot tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg.rows import class_row

from tailrace.bases.group import HOLDER_NAME
from tailrace.bases.reading import APPLICATION_NAME as READER_NAME
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class BaseUnderWay:
    """`what` is how much of which tables; `age_s` and `xmin_age` say since when, in seconds and in
    transactions, vacuum is held back.
    """

    what: str
    age_s: int
    xmin_age: int


_HOLDERS: Final = """
SELECT trim(substr(application_name, length(%(holder)s) + 1)) AS what,
       coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::int AS age_s,
       coalesce(age(backend_xmin), 0) AS xmin_age
  FROM pg_stat_activity
 WHERE starts_with(application_name, %(holder)s) AND application_name <> %(reader)s
   AND datname = current_database()
"""


def bases_under_way(conn: Connection) -> tuple[BaseUnderWay, ...]:
    """One at most, as nobody takes two at once."""
    with conn.cursor(row_factory=class_row(BaseUnderWay)) as cursor:
        names = {"holder": HOLDER_NAME, "reader": READER_NAME}
        return tuple(cursor.execute(_HOLDERS, names).fetchall())
