"""Changes all over a table: it is written anew in the order of its key, with the same rows."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.model import PgType
from tailrace.sinks.delta import table_uri
from tailrace.sinks.delta.feeding import THREADS
from tailrace.sinks.delta.files import Files
from tailrace.sinks.delta.rewrite import _dealt
from tailrace.sinks.delta.target import Target
from tests.capture.running import wait_until
from tests.sinks.harness import DeltaHarness
from tests.sinks.source import NAN, Source, batch_of, relation

ROWS, FILES = 60, 6


def key_of(kind: int, at: int) -> object:
    return f"k{at:04}" if kind == PgType.TEXT else at


def made(lake: DeltaHarness, kind: int = PgType.INT8) -> Source:
    """A table of six files side by side, whose keys are even numbers."""
    columns = {"k": kind, "sub": PgType.INT4, "doc": PgType.TEXT, "amount": PgType.NUMERIC}
    source = Source(relation(key=("k", "sub"), columns=columns))
    for sequence in range(FILES):
        for at in range(sequence * ROWS // FILES, (sequence + 1) * ROWS // FILES):
            source.insert(k=key_of(kind, 2 * at), sub=at % 3, doc=f"large {at}", amount=NAN)
        lake.sink.write(batch_of(sequence, source.take()))
    return source


def files(lake: DeltaHarness, source: Source) -> Files:
    target = Target.open(table_uri(lake.path, source.relation))
    assert target is not None
    return Files.of(target, source.relation.key[0])


def operations(lake: DeltaHarness, source: Source) -> list[str]:
    return [entry["operation"] for entry in lake.table(source.relation).history()]


def test_every_writer_gets_a_stretch_of_neighbours() -> None:
    assert _dealt(5, 1) == [0, 1, 2, 3, 4]
    assert _dealt(6, 2) == [0, 3, 1, 4, 2, 5]
    assert _dealt(5, 4) == [0, 2, 3, 4, 1]
    assert _dealt(2, 4) == [0, 1]


@pytest.mark.parametrize("kind", [PgType.INT8, PgType.TEXT, PgType.INT4])
def test_scattered_changes_keep_the_order_and_give_the_same_rows(tmp_path: Path, kind: int) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = made(lake, kind)
    for at in range(0, ROWS, 5):
        key = (key_of(kind, 2 * at), at % 3)
        match at % 3:
            case 0:
                source.update(*key, unchanged=["doc", "amount"])
            case 1:
                source.delete(*key)
            case _:
                source.update(*key, k=key_of(kind, 2 * at + 1), unchanged=["doc"], amount=None)
        source.insert(k=key_of(kind, 2 * at + 1), sub=9)
    source.insert(k=key_of(kind, 2 * ROWS), sub=1)
    batch = batch_of(FILES, source.take())
    for _ in range(2):
        lake.sink.write(batch)
    assert operations(lake, source)[0] == "WRITE"
    assert lake.rows(source.relation) == source.expected()
    assert files(lake, source).depth == 1.0
    assert lake.sink.committed("lake", [source.relation]) == {"public.orders": FILES}
    lake.close()


def test_neighbouring_keys_are_merged_into_their_files_alone(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = made(lake)
    before = set(lake.table(source.relation).file_uris())
    for at in range(12, 18):
        source.update(2 * at, at % 3, doc="small")
    lake.sink.write(batch_of(FILES, source.take()))
    assert operations(lake, source)[0] == "MERGE"
    assert len(before - set(lake.table(source.relation).file_uris())) == 1
    assert lake.rows(source.relation) == source.expected()
    lake.close()


def test_files_that_hold_one_value_are_not_all_read_at_once(tmp_path: Path) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = Source(relation(key=("k", "sub"), columns={"k": PgType.INT8, "sub": PgType.INT4}))
    for sequence in range(10):
        source.insert(k=1, sub=sequence)
        source.insert(k=sequence + 2, sub=0)
        lake.sink.write(batch_of(sequence, source.take()))
    for sequence in range(10):
        source.delete(sequence + 2, 0)
    lake.sink.write(batch_of(10, source.take()))
    assert operations(lake, source)[0] == "MERGE"
    assert lake.rows(source.relation) == source.expected()
    lake.close()


def test_rewrite_that_something_else_overtakes_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = made(lake)
    stale = Target.open(table_uri(lake.path, source.relation))
    assert stale is not None
    for at in range(0, ROWS, 7):
        source.delete(2 * at, at % 3)
    changes = source.take()
    opened: list[Target | None] = [stale]
    tables = lake._sink._lake
    lake_open = tables.open
    monkeypatch.setattr(
        tables, "open", lambda relation: opened.pop() if opened else lake_open(relation)
    )
    source.insert(k=1000, sub=1)
    lake.open().write(batch_of(1, source.take(), stream="other"))
    lake.sink.write(batch_of(FILES, changes))
    assert lake.rows(source.relation) == source.expected()
    lake.close()


def test_more_tables_than_the_library_has_threads_are_written_anew_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = THREADS + 1
    lakes = [DeltaHarness(str(tmp_path / f"{number}"), None) for number in range(count)]
    sources = [made(lake) for lake in lakes]
    all_read, read_range = threading.Barrier(count), Target.read_range

    def read_together(target: Target, condition: str) -> pa.Table:
        with suppress(threading.BrokenBarrierError):
            all_read.wait(1.0)
        return read_range(target, condition)

    monkeypatch.setattr(Target, "read_range", read_together)
    threads = []
    for lake, source in zip(lakes, sources, strict=True):
        for at in range(0, ROWS, 5):
            source.delete(2 * at, at % 3)
        batch = batch_of(FILES, source.take())
        # Daemons: threads that wait for each other would never end.
        threads.append(threading.Thread(target=lake.sink.write, args=[batch], daemon=True))
        threads[-1].start()
    wait_until(lambda: not any(thread.is_alive() for thread in threads))
    for lake, source in zip(lakes, sources, strict=True):
        assert operations(lake, source)[0] == "WRITE"
        assert lake.rows(source.relation) == source.expected()
        lake.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_scattered_batches_follow_the_source(tmp_path: Path, seed: int) -> None:
    lake = DeltaHarness(str(tmp_path), None)
    source = made(lake)
    rng = random.Random(seed)
    for sequence in range(FILES, FILES + 4):
        for key in rng.sample(sorted(source.rows), 12):
            if rng.random() < 0.3:
                source.delete(*key)
            else:
                unchanged = [name for name in ("doc", "amount") if source.rows[key][name]]
                source.update(*key, sub=int(str(key[1])) + 10, unchanged=unchanged)
        for _ in range(5):
            source.insert(k=rng.randrange(ROWS * 2), sub=100 * sequence + rng.randrange(90))
        lake.sink.write(batch_of(sequence, source.take()))
        assert lake.rows(source.relation) == source.expected()
    lake.close()
