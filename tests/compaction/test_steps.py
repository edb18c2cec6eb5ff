"""A transaction of any size is folded in steps: the base is the table, and memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace.compaction import Compactor
from tailrace.storage import MemoryStore, open_store
from tests.compaction.process import here, weigh
from tests.compaction.test_compaction import base_of, expected, filled, lines_of
from tests.decode import wire
from tests.log.faulty_store import Killed, dying
from tests.nursery import start
from tests.spark.made_log import MadeLog


def test_f045_one_transaction_of_any_size_is_folded_in_steps() -> None:
    """Rows of one step are changed, moved, completed and deleted by the next ones."""
    log = MadeLog(MemoryStore(), has_bases=False)
    table = filled()
    log.base_of(table)
    oid = table.relation.oid
    frames = [table.update(1, 1, "gone with the TRUNCATE", None), table.truncate()]
    frames += [table.insert(key, f"new {key}", 1) for key in range(20, 60)]
    frames += [wire.update(oid, [str(key), wire.UNSENT, "7"]) for key in range(20, 40)]
    frames += [table.delete(key) for key in range(50, 55)]
    moved = [wire.update(oid, ["90", wire.UNSENT, "8"], key=["41", None, None])]
    log.commit_in_parts(table, *frames, *moved, cuts=[15, 40])
    for key in range(20, 40):
        table.by_key[key] = (key, f"new {key}", 7)
    del table.by_key[41]
    table.by_key[90] = (90, "new 41", 8)
    steps: list[int] = []

    def counted(task: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        steps.append(len(items))
        return here(task, items)

    # Twice: what a killed one has put is made again under the same names, also if other objects
    # hold the changes by then.
    with pytest.raises(Killed):
        Compactor(dying(log.store, 6), here, step_bytes=400).compact()
    (outcome,) = Compactor(log.store, counted, step_bytes=400).compact()
    assert (outcome.position, outcome.reason) == (log.wal.end, "")
    assert len(steps) > 5
    assert lines_of(log, base_of(log)) == expected(table)


def test_f045_memory_of_a_fold_follows_neither_the_table_nor_a_transaction(tmp_path: Path) -> None:
    log = MadeLog(open_store(f"file:{tmp_path / 'log'}"), has_bases=False)
    table = filled()
    log.base_of(table)
    size, keys = 10_000, range(100, 4900)
    frames = [table.insert(key, str(key).rjust(size), None) for key in keys]
    frames += [table.update(key, key, str(-key).rjust(size), None) for key in keys[::6]]
    log.commit_in_parts(table, *frames, cuts=range(100, len(frames), 100))
    output = tmp_path / "output.txt"
    start(weigh, log.store.url, failpoint="", output=output).join()
    grown_bytes, task_bytes = map(int, output.read_text().split())
    assert base_of(log).row_count == len(table.by_key)
    # The table has 48 MB, the transaction 56 MB.
    assert grown_bytes < 40_000_000
    assert task_bytes < 1 << 20
