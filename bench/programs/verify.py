"""Copies a table into a lake, then reads both sides once and compares them, and times each."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa

from bench.programs.talk import peak_memory_mb, say, task
from tailrace.decode import decode_base
from tailrace.model import Lsn
from tailrace.postgres.session import connect
from tailrace.postgres.table_shape import TableShape, read_shape
from tailrace.sinks import Load
from tailrace.sinks.delta import DeltaOptions, DeltaSink, EmbeddedEngine, table_uri
from tailrace.verify.at_rest import compare_at_rest
from tailrace.verify.delta import DeltaRows

TABLE = "public.orders"
_COPY = "COPY public.orders TO STDOUT"
_PIECE_BYTES = 8 << 20


def _lines(dsn: str) -> Iterator[pa.BinaryArray]:
    """The table's rows as lines of COPY, some megabytes at a time."""
    with psycopg.connect(dsn) as conn, conn.cursor().copy(_COPY) as copy:
        lines: list[bytes] = []
        size = 0
        for line in copy:
            lines.append(bytes(line)[:-1])
            size += len(line)
            if size > _PIECE_BYTES:
                yield pa.array(lines, pa.binary())
                lines, size = [], 0
        yield pa.array(lines, pa.binary())


def fill(dsn: str, lake: str) -> TableShape:
    """Load the lake as a stream would, from what Postgres has."""
    with connect(dsn) as conn:
        row = conn.execute("SELECT 'public.orders'::regclass::oid::bigint").fetchone()
        assert row is not None
        shape = read_shape(conn, row[0])
    assert shape is not None
    rows = (
        piece.rows
        for lines in _lines(dsn)
        for piece in decode_base(lines, shape.relation, position=Lsn(16), taken_ts_us=0)
    )
    sink = DeltaSink(lake, engine=EmbeddedEngine(), options=DeltaOptions(compact_after=0))
    sink.load(Load("bench", 1, shape.relation, Lsn(16), 0), rows)
    sink.close()
    return shape


def timed(work: Callable[[], None]) -> float:
    """The seconds that it takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    """Do the task."""
    told = task()
    dsn, lake = told["dsn"], told["lake"]
    shape = fill(dsn, lake)
    uri = table_uri(lake, shape.relation)

    def copy() -> None:
        # A plain client in C: Python's own would be slower, and the bound easier to hold.
        command = [told["psql"], "--no-psqlrc", "--quiet", "--dbname", dsn, "--command", _COPY]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def scan() -> None:
        rows = DeltaRows.open(uri)
        assert rows is not None
        for _ in rows.tables(shape.relation.column_names):
            pass

    def verify() -> None:
        (result,) = compare_at_rest(dsn, lake, [TABLE])
        assert result.equal and result.source_rows == told["rows"], result

    seconds: dict[str, list[float]] = {"copy": [], "scan": [], "verify": []}
    for _ in range(told["rounds"]):
        for name, work in (("copy", copy), ("scan", scan), ("verify", verify)):
            seconds[name].append(timed(work))
    say("done", seconds=seconds, memory_mb=peak_memory_mb())


if __name__ == "__main__":
    main()
