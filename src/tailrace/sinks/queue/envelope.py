"""Changes as messages: one envelope for each change, rendered by the column.

`debezium` is the JSON of Debezium's PostgreSQL connector without schema: before, after, source, op
(c, u, d, t; r for the rows of a base) and ts_ms. `plain` says the same in the words that Tailrace
uses everywhere. An update that changes the key is two messages, as with Debezium: a delete of the
old key and an insert of the new one, because they belong to different lanes. A batch that is sent
again has the same messages, byte by byte; what a load brings anew has the number of another batch
beside the event's id, and what a replay sends has the replay's as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import __version__
from tailrace.decode import TableChanges, change_schema
from tailrace.model import Lsn, Op, PgType, Relation
from tailrace.model.change import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID
from tailrace.sinks.keys import Mask, Rows, plain_texts
from tailrace.sinks.letters.message import TABLE_LANE, Message, lane_of, place_of
from tailrace.sinks.queue.json_columns import Array, Style, iso_times, joined, or_null
from tailrace.sinks.queue.rows_json import RowsJson, flat, rows_json
from tailrace.sinks.sink import LOAD_ORDINAL, Load

READ: Final = "read"
"""What the rows of a base are: neither inserted now nor changed."""

_LETTERS: Final = {"insert": "c", "update": "u", "delete": "d", "truncate": "t", READ: "r"}
_NULL: Final = pa.scalar("null")


@dataclass(frozen=True, slots=True)
class _Part:
    """Some changes of a table, as columns: what happened, where, and the JSON of their rows."""

    ops: list[str]
    event_ids: list[str]
    places: list[str]
    keys: list[str]
    before: Array
    after: Array


@dataclass(frozen=True, slots=True)
class Renderer:
    """Renders what one stream sends of one database."""

    stream: str
    style: Style
    database: str = ""

    def changes(
        self, tables: Iterable[TableChanges], sequence: int, replay: str = ""
    ) -> list[Message]:
        """The messages of a batch, in the order of the log."""
        found = (self._table(table, sequence, replay=replay) for table in tables)
        messages = [message for each in found for message in each]
        messages.sort(key=lambda message: message.place)
        return messages

    def base(self, load: Load, rows: pa.Table) -> list[Message]:
        """The messages of some rows of a base."""
        return self._table(TableChanges(load.relation, rows), load.sequence, is_base=True)

    def base_begin(self, load: Load) -> Message:
        """What comes before the rows of a base: nothing that was sent before counts any more."""
        emptied = TableChanges(load.relation, _truncate_row(load))
        (message,) = self._table(emptied, load.sequence, is_base=True)
        return message

    def _table(
        self, table: TableChanges, sequence: int, *, is_base: bool = False, replay: str = ""
    ) -> list[Message]:
        if not table.rows.num_rows:
            return []
        rows = rows_json(table, self.style)
        moved = np.flatnonzero(_moves(table, rows))
        main = _main(table, rows, moved, sequence, is_base=is_base)
        mark = f',"batch":{sequence}' + (f',"replay":{_text(replay)}' if replay else "")
        every = np.arange(table.rows.num_rows)
        messages = self._messages(table, main, every, rows, mark=mark, replay=replay)
        if len(moved):
            half = _old_half(main, rows, moved)
            messages += self._messages(table, half, moved, rows, mark=mark, replay=replay)
        return messages

    def _messages(
        self, table: TableChanges, part: _Part, at: Rows, rows: RowsJson, *, mark: str, replay: str
    ) -> list[Message]:
        if self.style is Style.DEBEZIUM:
            payloads = self._debezium(table, part, at, mark)
        else:
            payloads = self._plain(table, part, at, rows, mark)
        name, identities = table.relation.qualified, _identities(table.relation, part)
        texts: list[Any] = payloads.cast(pa.binary()).to_pylist()
        return [
            Message(event_id, place, name, lane, key, payload, replay)
            for event_id, place, (lane, key), payload in zip(
                part.event_ids, part.places, identities, texts, strict=True
            )
        ]

    def _debezium(self, table: TableChanges, part: _Part, at: Rows, mark: str) -> Array:
        relation, rows = table.relation, table.rows.take(at)
        ts_ms = pc.divide(flat(rows.column(COMMIT_TS)).cast(pa.int64()), 1000).cast(pa.string())
        lsn = flat(rows.column(COMMIT_LSN)).cast(pa.string())
        is_read = "r" in {_LETTERS[op] for op in part.ops}
        head = (
            f'{{"version":{_text(__version__)},"connector":"postgresql",'
            f'"name":{_text(self.stream)},"snapshot":"{str(is_read).lower()}",'
            f'"db":{_text(self.database)},"schema":{_text(relation.schema)},"table":{_text(relation.name)},"ts_ms":'
        )
        return joined(
            *(pa.scalar('{"before":'), part.before, pa.scalar(',"after":'), part.after),
            *(pa.scalar(f',"source":{head}'), ts_ms, pa.scalar(',"txId":'), _numbers(rows, XID)),
            *(pa.scalar(',"lsn":'), lsn, pa.scalar(',"xmin":null,"event_id":"')),
            *(pa.array(part.event_ids), pa.scalar(f'"{mark}}},"op":"')),
            *(pa.array([_LETTERS[op] for op in part.ops]), pa.scalar('","ts_ms":')),
            *(ts_ms, pa.scalar("}")),
        )

    def _plain(
        self, table: TableChanges, part: _Part, at: Rows, rows: RowsJson, mark: str
    ) -> Array:
        taken = table.rows.take(at)
        keys = pa.array([key or "null" for key in part.keys], pa.string())
        found = _listed(taken, COMMIT_LSN)
        shown = {lsn: str(Lsn(lsn)) for lsn in set(found)}
        lsns = pa.array([shown[lsn] for lsn in found])
        return joined(
            *(pa.scalar('{"event_id":"'), pa.array(part.event_ids)),
            *(pa.scalar(f'"{mark},"stream":{_text(self.stream)},"op":"'), pa.array(part.ops)),
            *(pa.scalar(f'","table":{_text(table.relation.qualified)},"key":'), keys),
            *(pa.scalar(',"row":'), part.after, pa.scalar(',"before":'), part.before),
            *(pa.scalar(',"unchanged":'), rows.unchanged.take(at)),
            *(pa.scalar(',"commit_lsn":"'), lsns),
            *(pa.scalar('","ordinal":'), _numbers(taken, ORDINAL), pa.scalar(',"commit_ts":')),
            *(iso_times(flat(taken.column(COMMIT_TS))), pa.scalar(',"xid":')),
            *(_numbers(taken, XID), pa.scalar("}")),
        )


def _main(
    table: TableChanges, rows: RowsJson, moved: Rows, sequence: int, *, is_base: bool
) -> _Part:
    """Each change as it is; one that changes the key as an insert of the new one."""
    ops = _listed(table.rows, OP)
    for at in moved:
        ops[at] = str(Op.INSERT)
    if is_base:
        ops = [READ if op == Op.INSERT else op for op in ops]
    # Bases of several tables stand at one position, and each counts its rows from 0.
    of_table, suffix = (f"{table.relation.oid}-", "-r") if is_base else ("", "")
    offsets = list(zip(_listed(table.rows, COMMIT_LSN), _listed(table.rows, ORDINAL), strict=True))
    keyless = pa.array([op == Op.TRUNCATE for op in ops])
    shown = rows.has_before & _is_one_of(ops, "update", "delete")
    return _Part(
        ops=ops,
        event_ids=[f"{lsn:016X}-{of_table}{ordinal}{suffix}" for lsn, ordinal in offsets],
        places=[place_of(sequence, lsn, ordinal, 1) for lsn, ordinal in offsets],
        keys=_texts(pc.if_else(keyless, pa.scalar(""), rows.key)),
        before=pc.if_else(pa.array(shown), rows.before, _NULL),
        after=pc.if_else(pa.array(_is_one_of(ops, "delete", "truncate")), _NULL, rows.after),
    )


def _old_half(main: _Part, rows: RowsJson, moved: Rows) -> _Part:
    """The deletes of the keys that rows had before they changed them."""
    return _Part(
        ops=[str(Op.DELETE)] * len(moved),
        event_ids=[f"{main.event_ids[row]}-old" for row in moved],
        places=[f"{main.places[row][:-1]}0" for row in moved],
        keys=_texts(rows.old_key.take(moved)),
        before=rows.before.take(moved),
        after=pa.array(["null"] * len(moved), pa.string()),
    )


def _moves(table: TableChanges, rows: RowsJson) -> Mask:
    if not table.relation.key:
        return np.zeros(table.rows.num_rows, dtype=np.bool_)
    ops = _listed(table.rows, OP)
    differs = np.asarray(pc.not_equal(rows.key, rows.old_key), dtype=np.bool_)
    return differs & rows.has_before & _is_one_of(ops, "update")


def _is_one_of(ops: list[str], *wanted: str) -> Mask:
    return np.fromiter((op in wanted for op in ops), np.bool_, len(ops))


def _identities(relation: Relation, part: _Part) -> list[tuple[str, str]]:
    """The lane of each message and the key that it is sent with: one of each for a row, however its
    key is spelt. By key, hashed once for each; a row without one is alone in its lane.
    """
    known = {
        key: (lane_of(relation.qualified, text), steady)
        for key, (text, steady) in _steady_keys(relation, list(set(part.keys))).items()
    }
    return [
        (TABLE_LANE, "")
        if op == Op.TRUNCATE
        else known[key]
        if key
        else (lane_of("", event_id), "")
        for op, key, event_id in zip(part.ops, part.keys, part.event_ids, strict=True)
    ]


def _steady_keys(relation: Relation, keys: list[str]) -> dict[str, tuple[str, str]]:
    """By key, what its lane is known by, and the key as it is sent: the same however a value is
    spelt, also after its column was given more digits or blanks. The two differ in form alone.
    """
    kinds = {column.name: relation.base_type(column)[0] for column in relation.columns}
    respelt = [name for name in relation.key if kinds[name] in (PgType.NUMERIC, PgType.BPCHAR)]
    steady = {key: (key, key) for key in keys}
    if respelt:
        found = [(key, json.loads(key)) for key in keys if key]
        for name in respelt:
            texts = plain_texts([values[name] for _, values in found], kinds[name])
            for (_, values), text in zip(found, texts, strict=True):
                values[name] = text
        for key, values in found:
            sent = values | {
                name: f"{Decimal(values[name]):f}"
                for name in respelt
                if kinds[name] == PgType.NUMERIC and values[name]
            }
            compact = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
            steady[key] = _text(values), compact
    return steady


def _truncate_row(load: Load) -> pa.Table:
    schema = change_schema(load.relation)
    row = {
        OP: str(Op.TRUNCATE),
        COMMIT_LSN: int(load.position),
        ORDINAL: LOAD_ORDINAL,
        COMMIT_TS: load.commit_ts_us,
    }
    return pa.Table.from_pylist([row], schema=schema)


def _numbers(rows: pa.Table, name: str) -> Array:
    return or_null(flat(rows.column(name)).cast(pa.string()))


def _listed(rows: pa.Table, name: str) -> list[Any]:
    """A column without NULLs as a list."""
    return rows.column(name).to_pylist()


def _texts(values: Array) -> list[str]:
    found: list[Any] = values.to_pylist()
    return found


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
