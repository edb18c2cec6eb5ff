"""Planning a micro-batch: few questions to the store, and tasks of a fair size."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tailrace.log import Reader
from tailrace.log.plan import Limits, Piece
from tailrace.model import ORIGIN, Lsn, Offset
from tailrace.spark.options import NO_LIMIT
from tailrace.spark.planning import LOOK_S, PARTITION_BYTES, POLL_S, BatchEnds, partitions
from tailrace.storage import MemoryStore
from tests.log.faulty_store import WatchedStore
from tests.log.making import anything
from tests.spark.made_log import MadeLog, Table, merge_all

PLENTY = Limits(NO_LIMIT, NO_LIMIT)
ALL = ReadAllAvailable()


class _Time:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def _ends(log: MadeLog, time: _Time | None = None, counts: Counter[str] | None = None) -> BatchEnds:
    counted: Counter[str] = Counter() if counts is None else counts
    store = WatchedStore(log.store, before=lambda what, key: counted.update([what]))
    time = time or _Time()
    return BatchEnds(Reader(store), limits=PLENTY, clock=time.clock, sleep=time.sleep)


def _piece(number: int, size: int) -> Piece:
    return Piece(f"segments/{number}", ORIGIN, Offset.whole(Lsn(number)), size, "writer")


def test_idle_query_asks_the_store_little() -> None:
    log = MadeLog(MemoryStore())
    end = log.insert(Table(), 1)
    time, counts = _Time(), Counter[str]()
    ends = _ends(log, time, counts)
    assert ends.next(end, ALL, wanted=anything) == end
    counts.clear()
    began_s = time.now_s
    for _ in range(1000):
        assert ends.next(end, ALL, wanted=anything) == end
    elapsed_s = time.now_s - began_s
    assert elapsed_s >= 999 * POLL_S, "Spark is kept waiting"
    assert counts["get"] < 11 * elapsed_s
    assert counts["list"] < 5 * elapsed_s


def test_what_came_a_moment_ago_is_seen() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    end = log.insert(table, 1)
    ends = _ends(log)
    for key in range(2, 5):
        assert ends.next(end, ALL, wanted=anything) == end
        after, end = end, log.insert(table, key)
        assert ends.next(after, ALL, wanted=anything) == end


def test_what_was_merged_before_it_was_seen_is_found() -> None:
    log, table, time = MadeLog(MemoryStore()), Table(), _Time()
    end = log.insert(table, 1)
    ends = _ends(log, time)
    assert ends.next(end, ALL, wanted=anything) == end
    log.insert(table, 2)
    merge_all(log)
    assert ends.next(end, ALL, wanted=anything) == end, "the one name that is looked for is gone"
    time.sleep(LOOK_S)
    assert ends.next(end, ALL, wanted=anything) == log.end


def test_available_now_ends_at_the_tip_of_its_start() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    end = log.insert(table, 1)
    ends = _ends(log)
    ends.stop_at_tip()
    log.insert(table, 2)
    assert ends.next(log.begin, ALL, wanted=anything) == end
    assert ends.next(end, ALL, wanted=anything) == end
    assert ends.next(log.end, ALL, wanted=anything) == log.end, "never back"


def test_spark_may_lower_a_limit() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    end = log.insert(table, 1, 10, size=100)
    ends = _ends(log)
    assert ends.next(log.begin, ReadMaxRows(3), wanted=anything) == Offset(end.commit_lsn, 2)
    assert ends.next(log.begin, ReadMaxBytes(300), wanted=anything) == Offset(end.commit_lsn, 1)


def test_process_that_only_plans_does_not_load_what_decodes() -> None:
    """Spark starts several of them for each query, one after the other."""
    program = "import sys, tailrace.spark.packed; sys.stdout.write(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(result.stdout.split())
    assert "tailrace.log.plan" in loaded
    assert not {"tailrace.decode", "pandas", "pyarrow.compute", "psycopg"} & loaded


def test_tasks_hold_neighbours_up_to_a_size() -> None:
    sizes = [1, PARTITION_BYTES - 1, 1, 2 * PARTITION_BYTES, 3, 4]
    pieces = [_piece(number, size) for number, size in enumerate(sizes)]
    groups = [group.pieces for group in partitions(pieces)]
    assert [[piece.data_bytes for piece in group] for group in groups] == [
        sizes[:2],
        sizes[2:3],
        sizes[3:4],
        sizes[4:],
    ]


def test_empty_range_is_one_task_of_ours() -> None:
    assert [group.pieces for group in partitions([])] == [()]
