"""Asking the leader for a snapshot, where there is no slot to make one: `tailrace.base_requests`.

Who takes a base asks and polls. The leader answers every open request with the exported snapshot of
its next drain and that drain's position, and keeps the snapshot open until it has been imported, or
for a short time: then it is gone, and so is the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.model import Lsn
from tailrace.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class Answer:
    """The name under which the snapshot can be imported, and the position of which it is."""

    snapshot: str
    position: Lsn


def ask(conn: Connection, *, source: str, by: str) -> int:
    """Ask for a snapshot; the number of the request."""
    query = """INSERT INTO tailrace.base_requests (source, requested_by)
               VALUES (%s, %s) RETURNING id"""
    row = conn.execute(query, (source, by)).fetchone()
    assert row is not None
    return int(row[0])


def answer(conn: Connection, request: int) -> Answer | None:
    """What the leader has answered, if it has. Raises LookupError if the request is gone."""
    query = 'SELECT snapshot_name, "position"::text FROM tailrace.base_requests WHERE id = %s'
    row = conn.execute(query, (request,)).fetchone()
    if row is None:
        raise LookupError(f"base request {request} is gone")
    snapshot, position = row
    return None if snapshot is None else Answer(snapshot, Lsn.parse(position))


def mark_imported(conn: Connection, request: int) -> None:
    """Tell the leader that it need not hold the snapshot any longer."""
    query = "UPDATE tailrace.base_requests SET imported_at = clock_timestamp() WHERE id = %s"
    conn.execute(query, (request,))


def open_requests(conn: Connection, source: str) -> list[int]:
    """Those that are not answered yet, in the order in which they were made."""
    query = """SELECT id FROM tailrace.base_requests
                WHERE source = %s AND answered_at IS NULL ORDER BY id"""
    return [int(number) for (number,) in conn.execute(query, (source,))]


def give(conn: Connection, requests: list[int], snapshot: str, position: Lsn) -> None:
    """Answer requests."""
    query = """UPDATE tailrace.base_requests
                  SET snapshot_name = %s, "position" = %s::pg_lsn, answered_at = clock_timestamp()
                WHERE id = ANY (%s)"""
    conn.execute(query, (snapshot, str(position), requests))


def waiting(conn: Connection, requests: list[int]) -> int:
    """How many of them have not imported their snapshot yet; those given up do not count."""
    query = """SELECT count(*) FROM tailrace.base_requests
                WHERE id = ANY (%s) AND imported_at IS NULL"""
    row = conn.execute(query, (requests,)).fetchone()
    assert row is not None
    return int(row[0])


def close_requests(conn: Connection, requests: list[int]) -> None:
    """Delete requests: they are served, given up, or their snapshot is gone."""
    conn.execute("DELETE FROM tailrace.base_requests WHERE id = ANY (%s)", (requests,))
