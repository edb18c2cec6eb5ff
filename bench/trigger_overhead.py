"""`trigger_overhead`: what capture costs the writer of a table.

With triggers, beside no capture at all and beside a plain outbox trigger that keeps rows as jsonb.
After a hand-over the table has no triggers, and the same writer is measured while the real daemon
reads the WAL on the same cores: beside none, beside a reader that throws everything away, which
shows what is left if only Postgres decodes, and beside a process that only spins, which shows what
the machine takes from a writer as soon as its other core is busy. That is done with large commits
and with small ones, and with readers that are connected by TCP and by a Unix socket: the latter
hands over row by row, the former many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Final

from bench.report import Bound, Line, Report, ratio_line
from bench.source import Source
from bench.wal_readers import DISCARD, NONE, SPIN, WAL, wal_readers
from bench.workbench import Workbench
from bench.workload import make_orders
from bench.writer import Sides, Writer, take_turns
from tailrace.control.schema import migrate
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import install_triggers, switch_triggers

OUTBOX_FLOOR: Final = 1.1
WAL_FLOOR: Final = 0.9
ROWS_PER_COMMIT: Final = (100, 1)
TRANSPORTS: Final = ("tcp", "socket")
LOCK_MS: Final = 5000
_SMALL_FACTOR: Final = 3
"""Of small commits there are so many more."""

_OUTBOX: Final = """
CREATE TABLE bench.outbox (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), table_name text NOT NULL,
    op text NOT NULL, row_key text NOT NULL, old_row jsonb, new_row jsonb
);
CREATE FUNCTION bench.to_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO bench.outbox (table_name, op, row_key, new_row)
        VALUES (TG_TABLE_NAME, TG_OP, NEW.id, to_jsonb(NEW));
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO bench.outbox (table_name, op, row_key, old_row, new_row)
        VALUES (TG_TABLE_NAME, TG_OP, NEW.id, to_jsonb(OLD), to_jsonb(NEW));
    ELSE
        INSERT INTO bench.outbox (table_name, op, row_key, old_row)
        VALUES (TG_TABLE_NAME, TG_OP, OLD.id, to_jsonb(OLD));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox AFTER INSERT OR UPDATE OR DELETE ON public.orders
    FOR EACH ROW EXECUTE FUNCTION bench.to_outbox();
"""


@dataclass(frozen=True, slots=True)
class Slices:
    """How often the sides take turns, and for how long."""

    per_round: int
    share: int
    """Of the rows of a backlog, one in so many is a commit of a slice."""


_TRIGGER_SLICES: Final = Slices(per_round=6, share=3000)
_READER_SLICES: Final = Slices(per_round=3, share=600)
"""A reader that was stopped has all its timers due when it goes on: in a slice of 300 ms that is
much of what it does, in one of seconds as little as in a steady flow.
"""


class Triggers:
    """The triggers that see the table's changes: none, ours or the outbox's."""

    names = (NONE, "triggers", "outbox")

    def __init__(self, conn: Connection, table: TableInfo) -> None:
        self._conn = conn
        self._table = table

    @contextmanager
    def beside(self, name: str) -> Iterator[str]:
        """See `Sides.beside`."""
        conn = self._conn
        if name == "triggers":
            switch_triggers(conn, self._table, enabled=True)
        elif name == "outbox":
            conn.execute("ALTER TABLE public.orders ENABLE TRIGGER outbox")
        yield "public.orders"
        conn.execute("ALTER TABLE public.orders DISABLE TRIGGER ALL")


def run(workbench: Workbench) -> Report:
    """Measure."""
    lines: list[Line] = []
    samples: list[dict[str, object]] = []
    with workbench.source("trigger_overhead") as source, connect(source.database.dsn) as conn:
        table = _prepare(source, conn)
        triggers = Triggers(conn, table)
        for kind, rates in _measured(workbench, conn, triggers, 100, _TRIGGER_SLICES, samples):
            lines += _trigger_lines(kind, rates)
        for transport, rows in product(TRANSPORTS, ROWS_PER_COMMIT):
            workbench.say(f"readers of the wal, by {transport}")
            with wal_readers(source, transport) as readers:
                measured = _measured(workbench, conn, readers, rows, _READER_SLICES, samples)
                for kind, rates in measured:
                    lines += _wal_lines(f"{kind}, {rows} a commit, {transport}", rates)
    return Report("trigger_overhead", lines, samples)


def _prepare(source: Source, conn: Connection) -> TableInfo:
    make_orders(conn)
    source.begin()
    migrate(conn)
    conn.execute(_OUTBOX)
    (table,) = tables_matching(conn, ["public.orders"])
    install_triggers(conn, table, lock_timeout_ms=LOCK_MS)
    conn.execute("ALTER TABLE public.orders DISABLE TRIGGER ALL")
    return table


def _measured(
    workbench: Workbench,
    conn: Connection,
    sides: Sides,
    rows: int,
    slices: Slices,
    samples: list[dict[str, object]],
) -> Iterator[tuple[str, Mapping[str, list[float]]]]:
    writer = Writer(conn, rows_per_statement=rows)
    # So that no checkpoint falls into what is measured.
    conn.execute("CHECKPOINT")
    commits = max(1, workbench.options.rows // slices.share) * (_SMALL_FACTOR if rows == 1 else 1)
    count = workbench.options.rounds * slices.per_round
    for kind, rates in take_turns(writer, sides, slices=count, statements=commits):
        samples += [
            {"side": side, "kind": kind, "rows_per_commit": rows, "rows_per_s": values}
            for side, values in rates.items()
        ]
        described = ", ".join(f"{side} {_middle(values):,.0f}" for side, values in rates.items())
        workbench.say(f"{kind}, {rows} rows a commit: {described} rows/s")
        yield kind, rates


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _trigger_lines(kind: str, rates: Mapping[str, list[float]]) -> list[Line]:
    ours, what = rates["triggers"], f"{kind}, triggers"
    return [
        ratio_line(
            what, "rows/s", ours, rates["outbox"], Bound(OUTBOX_FLOOR), beside_name="outbox"
        ),
        ratio_line(what, "rows/s", ours, rates[NONE], None, beside_name=NONE),
    ]


def _wal_lines(what: str, rates: Mapping[str, list[float]]) -> list[Line]:
    none, ours = rates[NONE], f"{what}, handed over to the wal"
    return [
        ratio_line(ours, "rows/s", rates[WAL], none, Bound(WAL_FLOOR), beside_name=NONE),
        *(_told_line(f"{what}, {side}", rates[side], none) for side in (DISCARD, SPIN)),
    ]


def _told_line(what: str, rates: list[float], none: list[float]) -> Line:
    return ratio_line(what, "rows/s", rates, none, None, beside_name=NONE)
