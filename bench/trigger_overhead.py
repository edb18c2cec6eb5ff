"""`trigger_overhead`: what capture costs the writer of a table, beside no capture at all and beside
a plain outbox trigger that keeps rows as jsonb.

The writer is a plain client with the settings that a session has by default: it sends one statement
of a hundred rows after the other, and each is durable when the next is sent. After a hand-over the
table has no triggers, and the same writer is measured while the real daemon, with a log that begins
there, reads the WAL on the same cores; and while `pg_recvlogical` does, which takes the least that
anybody can.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from bench.report import Bound, Line, Report, ratio_line
from bench.sides import recvlogical
from bench.source import Source
from bench.workbench import Workbench
from bench.workload import make_orders
from tailrace.control.schema import migrate
from tailrace.postgres.buffer import buffer
from tailrace.postgres.catalog import TableInfo, tables_matching
from tailrace.postgres.quote import statement
from tailrace.postgres.server import insert_position
from tailrace.postgres.session import Connection, connect
from tailrace.postgres.triggers import install_triggers, switch_triggers

OUTBOX_FLOOR: Final = 1.1
WAL_FLOOR: Final = 0.9
ROWS_PER_STATEMENT: Final = 100
LOCK_MS: Final = 5000
_POLL_S: Final = 0.05
_ROWS_SHARE: Final = 10
"""Of the rows of a backlog, one in so many is written by each side in each round."""

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

_STATEMENTS: Final = {
    "insert": """
INSERT INTO public.orders
SELECT g, g % 10007, (g % 99999989) / 100.0, substr(md5(g::text), 1, 20),
       '2026-01-01'::timestamptz + g * interval '1.234567 seconds', g % 3 = 0
  FROM generate_series($1::bigint, $2::bigint) AS g""",
    "update": "UPDATE public.orders SET paid = NOT paid WHERE id BETWEEN $1 AND $2",
    "delete": "DELETE FROM public.orders WHERE id BETWEEN $1 AND $2",
}

KINDS: Final = tuple(_STATEMENTS)
SIDES: Final = ("none", "triggers", "outbox")
READERS: Final = ("wal", "pg_recvlogical")
"""Of the WAL, beside the writer: the daemon, and the least that anybody can do."""


def run(workbench: Workbench) -> Report:
    """Measure."""
    rows = max(ROWS_PER_STATEMENT, workbench.options.rows // _ROWS_SHARE)
    rows -= rows % ROWS_PER_STATEMENT
    samples: list[dict[str, object]] = []
    with workbench.source("trigger_overhead") as source, connect(source.database.dsn) as conn:
        table = _prepare(source, conn)
        for round_number in range(workbench.options.rounds):
            for turn in range(len(SIDES)):
                side = SIDES[(turn + round_number) % len(SIDES)]
                _choose(conn, table, side)
                samples.append(_written(conn, side, rows))
                workbench.say(f"round {round_number + 1} {_described(samples[-1])}")
            for turn in range(len(READERS)):
                _choose(conn, table, "none")
                reader = READERS[(turn + round_number) % len(READERS)]
                samples.append(_beside(reader, source, conn, rows))
                workbench.say(f"round {round_number + 1} {_described(samples[-1])}")
    lines = [line for kind in KINDS for line in _lines(samples, kind)]
    return Report(
        "trigger_overhead",
        lines,
        samples,
        {"rows": rows, "rows_per_statement": ROWS_PER_STATEMENT},
    )


def _prepare(source: Source, conn: Connection) -> TableInfo:
    make_orders(conn)
    source.begin()
    migrate(conn)
    conn.execute(_OUTBOX)
    (table,) = tables_matching(conn, ["public.orders"])
    install_triggers(conn, table, lock_timeout_ms=LOCK_MS)
    return table


def _choose(conn: Connection, table: TableInfo, side: str) -> None:
    """Empty everything and let one side see the table's changes."""
    conn.execute("TRUNCATE public.orders, bench.outbox")
    conn.execute("ALTER TABLE public.orders DISABLE TRIGGER ALL")
    if side == "triggers":
        switch_triggers(conn, table, enabled=True)
    elif side == "outbox":
        conn.execute("ALTER TABLE public.orders ENABLE TRIGGER outbox")
    conn.execute(statement("TRUNCATE {}", buffer(table.oid)))
    # So that no checkpoint falls into what is measured.
    conn.execute("CHECKPOINT")


def _written(conn: Connection, side: str, rows: int) -> dict[str, object]:
    sample: dict[str, object] = {"side": side, "rows": rows}
    with psycopg.RawCursor(conn) as client:
        for kind, statement_text in _STATEMENTS.items():
            with _timed(sample, kind, rows):
                for first in range(1, rows + 1, ROWS_PER_STATEMENT):
                    bounds = (first, first + ROWS_PER_STATEMENT - 1)
                    client.execute(statement_text.encode(), bounds, prepare=True)
    return sample


def _beside(reader: str, source: Source, conn: Connection, rows: int) -> dict[str, object]:
    """The writer beside a reader of the WAL that has nothing else to do: the daemon has neither to
    catch up with what was before, nor to merge what it has caught up with.
    """
    source.begin_anew()
    if reader == "pg_recvlogical":
        with recvlogical(source):
            return _written(conn, reader, rows)
    with source.capture("socket", len(KINDS) * rows) as child:
        child.event("streaming")
        _wait_caught_up(conn, source)
        sample = _written(conn, reader, rows)
        child.event("done")
    return sample


def _wait_caught_up(conn: Connection, source: Source) -> None:
    """Until the log holds all that was written before now, by whichever side."""
    behind = """SELECT confirmed_flush_lsn < %s::pg_lsn FROM pg_replication_slots
                 WHERE slot_name = %s"""
    until = str(insert_position(conn))
    while conn.execute(behind, (until, source.names.slot)).fetchone() != (False,):
        time.sleep(_POLL_S)


@contextmanager
def _timed(sample: dict[str, object], name: str, rows: int) -> Iterator[None]:
    began = time.perf_counter()
    yield
    sample[name] = rows / (time.perf_counter() - began)


def _rates(samples: list[dict[str, object]], side: str, kind: str) -> list[float]:
    return [float(str(sample[kind])) for sample in samples if sample["side"] == side]


def _described(sample: dict[str, object]) -> str:
    figures = [f"{k} {float(str(v)):,.0f}" for k, v in sample.items() if k not in ("side", "rows")]
    return f"{sample['side']}: {', '.join(figures)} rows/s"


def _lines(samples: list[dict[str, object]], kind: str) -> list[Line]:
    none, outbox = (_rates(samples, side, kind) for side in ("none", "outbox"))
    ours, wal = (_rates(samples, side, kind) for side in ("triggers", "wal"))
    bare = _rates(samples, "pg_recvlogical", kind)
    floor, handed_over = Bound(OUTBOX_FLOOR), f"{kind}, handed over to the wal"
    return [
        ratio_line(f"{kind}, triggers", "rows/s", ours, outbox, floor, beside_name="outbox"),
        ratio_line(f"{kind}, triggers", "rows/s", ours, none, None, beside_name="no capture"),
        ratio_line(handed_over, "rows/s", wal, none, Bound(WAL_FLOOR), beside_name="no capture"),
        ratio_line(handed_over, "rows/s", wal, bare, None, beside_name="beside pg_recvlogical"),
    ]
