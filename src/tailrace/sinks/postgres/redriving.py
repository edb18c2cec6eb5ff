"""Dead letters brought into their target once more.

It happens in a transaction that holds the stream's watermark, and that looks at the epoch while it
does: no batch of a successor can come between, and a zombie changes nothing. The watermark stays
where it is. A letter whose batch is not recorded yet is left to the batch.

Done again after a crash it changes nothing: rows are what they were, because their keys are parked
until the letters are gone, and a change that the table has is not added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import psycopg
from psycopg import sql

from tailrace.errors import SchemaError, SinkError
from tailrace.failpoint import failpoint
from tailrace.model.change import COMMIT_LSN, ORDINAL, ORIGIN
from tailrace.postgres.quote import identifier
from tailrace.postgres.session import Connection
from tailrace.postgres.sqlstate import source_error
from tailrace.sinks.keys import Rows
from tailrace.sinks.letters.failure import Failure, Kind
from tailrace.sinks.letters.message import Message, sequence_of
from tailrace.sinks.letters.parked import Parked, ToPark
from tailrace.sinks.letters.redrive import Sent
from tailrace.sinks.postgres.apart import write_apart
from tailrace.sinks.postgres.options import PostgresOptions
from tailrace.sinks.postgres.records import Records, kept_records
from tailrace.sinks.postgres.sessions import Sessions
from tailrace.sinks.postgres.target import Target
from tailrace.sinks.postgres.watermark import Watermark, set_up

_OFFSET: Final = (COMMIT_LSN, ORDINAL, ORIGIN)
_UNDER_WAY: Final = "its batch is under way, and comes first"


@dataclass(slots=True)
class _Refused:
    """Keeps why letters are refused again; nothing waits before what is redriven."""

    errors: dict[int, psycopg.Error] = field(default_factory=dict)
    lanes: set[str] = field(default_factory=set)

    def free(self, records: Records, rows: Rows) -> Rows:
        """Those of lanes in which nothing was refused."""
        is_free = [records.lane(int(at)) not in self.lanes for at in rows]
        return rows[np.array(is_free, dtype=np.bool_)]

    def refuse(self, records: Records, at: int, error: psycopg.Error) -> None:
        """It stays a letter."""
        self.errors[at] = error
        self.lanes.add(records.lane(at))


@dataclass(frozen=True, slots=True)
class Redriving:
    """Redrives letters of one stream; `look` raises if somebody else delivers it by now."""

    sessions: Sessions
    options: PostgresOptions
    stream: str
    look: Callable[[], None]

    def send(self, messages: Sequence[Message], parked: Parked) -> Sent:
        """Bring letters into their targets, in order; what is refused parks its lane."""
        tables: dict[str, list[Message]] = {}
        refused: dict[str, ToPark] = {}
        delivered: set[str] = set()
        for message in messages:
            if parked.holds(message):
                refused[message.place] = ToPark(0, 0, None)
            else:
                tables.setdefault(message.table, []).append(message)
        for some in tables.values():
            try:
                failed = self._send_table(some)
            except SchemaError as error:
                return Sent(frozenset(delivered), refused, SinkError(str(error), hint=error.hint))
            except SinkError as error:
                return Sent(frozenset(delivered), refused, error)
            delivered.update(each.place for each in some if each.place not in failed)
            refused.update(failed)
            for message in some:
                if message.place in failed:
                    parked.add(message)
        return Sent(frozenset(delivered), refused, None)

    def _send_table(self, messages: Sequence[Message]) -> dict[str, ToPark]:
        """By place, what is not taken."""
        relation = kept_records(messages).relation
        with self.sessions.transaction() as conn:
            set_up(conn)
            target = Target.open(conn, self.options.place(relation), relation)
            if target is None:
                raise SinkError(f"there is no target of {relation.qualified} any more")
            watermark = Watermark.hold(conn, target.oid, self.stream)
            if watermark.recorded is None:
                raise SinkError(f"the target of {relation.qualified} was made anew")
            # Whoever takes over from now on waits for the watermark.
            self.look()
            due = [each for each in messages if watermark.covers(sequence_of(each.place))]
            late = {each.place for each in messages} - {each.place for each in due}
            failed = dict.fromkeys(late, _refusal(_UNDER_WAY))
            if due:
                failed |= _written(conn, target, due)
            failpoint("redrive.before_commit")
        failpoint("redrive.after_commit")
        return failed


def _written(conn: Connection, target: Target, messages: Sequence[Message]) -> dict[str, ToPark]:
    """Bring letters into a target; by place, why some are refused, or that they are behind one."""
    records = kept_records(messages)
    held = {column.name for column in target.layout.columns}
    if gone := [name for name in records.texts.column_names if name not in held]:
        why = _refusal(f"the target has no column {gone[0]}")
        return {message.place: why for message in messages}
    if records.is_changes:
        there = _there(conn, target, records)
        chosen = [
            message for message, is_there in zip(messages, there, strict=True) if not is_there
        ]
    else:
        # Each is whole, so the newest is all that is left of those before it.
        chosen = list({message.lane: message for message in messages}.values())
    if not chosen:
        return {}
    refused = _Refused()
    write_apart(conn, target, kept_records(chosen), refused)
    first = {chosen[at].lane: chosen[at].place for at in refused.errors}
    failed = {
        message.place: ToPark(0, 0, None)
        for message in messages
        if message.lane in first
        and (not records.is_changes or message.place >= first[message.lane])
    }
    reasons = {chosen[at].place: str(source_error(e)) for at, e in refused.errors.items()}
    return failed | {place: _refusal(reason) for place, reason in reasons.items()}


def _there(conn: Connection, target: Target, records: Records) -> list[bool]:
    """Which of the changes the table has."""
    offsets = list(zip(*(records.texts.column(name).to_pylist() for name in _OFFSET), strict=True))
    lists = [sql.Literal(list(each)) for each in zip(*offsets, strict=True)]
    # Literals: with parameters, a % in the name of a table would be one too.
    query = sql.SQL(
        "SELECT {0}::text, {1}::text, {2} FROM {3} WHERE ({0}, {1}, {2}) IN"
        " (SELECT a::int8, b::int8, c"
        " FROM unnest({4}::text[], {5}::text[], {6}::text[]) AS o (a, b, c))"
    ).format(*map(identifier, _OFFSET), target.name, *lists)
    found = set(conn.execute(query).fetchall())
    return [offset in found for offset in offsets]


def _refusal(reason: str) -> ToPark:
    return ToPark(0, 1, Failure(Kind.POISON, reason, ""))
