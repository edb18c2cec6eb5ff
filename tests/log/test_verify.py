"""Verification: silent on a sound log, and each kind of damage has its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from tailrace.errors import LogError, StoreError
from tailrace.log import Base, BaseOrigin, Header, Reader, layout, segment
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import put_base, put_base_part
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.verify import Verification, verify
from tailrace.log.verify_bases import verify_bases
from tailrace.model import Lsn, Offset
from tailrace.postgres.frames import Frames
from tailrace.storage import MemoryStore, Store
from tests.decode import wire
from tests.log.faulty_store import WatchedStore
from tests.log.making import SOURCE, START, Clock, Wal, begin, begin_writer, put_in_parts, shape

T = shape()


def _log(store: Store) -> tuple[Wal, Header]:
    """Small segments, one in parts, a change of shape; the header of the one in parts."""
    to, wal = begin_writer(store), Wal()
    wider = shape(T.oid, "id", "note")
    to.append(wal.rows(T, 2))
    to.append(wal.transaction(wal.row(T), wire.relation(wider), wal.row(wider)))
    parted = put_in_parts(to, wal.rows(T, 4), 3, 5)
    to.append(Frames.concat([wal.rows(T), wal.transaction(wire.message())]))
    to.append(wal.transaction(wire.truncate(T.oid)))
    return wal, parted


def _verified(store: Store) -> Verification:
    return list(verify(store))[-1]


def _replace(store: Store, key: str, data: bytes) -> None:
    store.delete([key])
    store.put_new(key, data)


def _rewrite(store: Store, key: str, header: Header, frames: Frames | None = None) -> None:
    """Another content under the same name, with checksums that are right."""
    kept = segment.read(store, key).frames if frames is None else frames
    _replace(store, key, segment.encode(header, kept).to_pybytes())


def test_a_sound_log_has_no_problems(store: Store) -> None:
    wal, _ = _log(store)
    result = _verified(store)
    assert result.problems == []
    assert (result.segment_count, result.transaction_count) == (5, 6)
    assert result.change_count == len(wal.changes)
    assert (result.start, result.end) == (START, wal.end)
    assert result.data_bytes > 0


def test_an_empty_log_is_sound(store: Store) -> None:
    begin(store)
    assert _verified(store) == Verification(start=START, end=START)


def test_no_log_at_all_is_an_error(store: Store) -> None:
    with pytest.raises(LogError, match="no log"):
        _verified(store)


def test_a_merged_log_is_sound() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal, _ = _log(store)
    merger = Merger(store, writer_id="m", policy=MergePolicy(1 << 20, 2, 1.0))
    for _ in range(3):
        assert _verified(store).problems == []
        clock.now_s += 10
        merger.step(clock.now_s)
    result = _verified(store)
    assert result.problems == [] and result.change_count == len(wal.changes)
    assert result.segment_count == 3


def test_a_missing_segment_is_found_and_the_rest_is_still_checked(store: Store) -> None:
    _log(store)
    store.delete([layout.segment_key(START + 100)])
    data = store.get(layout.segment_key(START + 300))
    _replace(store, layout.segment_key(START + 300), data[:-50])
    first, second = _verified(store).problems
    assert "0/1064 is missing" in first
    assert layout.segment_key(START + 300) in second


def test_a_missing_tail_is_found_if_progress_knows_of_it(store: Store) -> None:
    to, wal = begin_writer(store), Wal()
    to.append(wal.rows(T))
    to.put_progress(to.position)
    store.delete([layout.segment_key(START)])
    (problem,) = _verified(store).problems
    assert "missing" in problem


@pytest.mark.parametrize("at", [0, 100, 500])
def test_a_torn_segment_is_found(store: Store, at: int) -> None:
    _log(store)
    key = layout.segment_key(START + at)
    data = store.get(key)
    _replace(store, key, data[: len(data) * 2 // 3])
    problems = _verified(store).problems
    assert problems and all(key in problem for problem in problems)


def test_a_damaged_head_is_found_and_passed(store: Store) -> None:
    wal, _ = _log(store)
    key = layout.segment_key(START + 100)
    _replace(store, key, store.get(key).replace(b'"frames":', b'"Frames":', 1))
    result = _verified(store)
    assert len(result.problems) == 1 and key in result.problems[0]
    assert result.end == wal.end


def test_a_damaged_genesis_is_found(store: Store) -> None:
    _log(store)
    _replace(store, layout.GENESIS, b"")
    (problem,) = _verified(store).problems
    assert layout.GENESIS in problem


def test_swapped_objects_are_found(store: Store) -> None:
    _log(store)
    one, other = layout.segment_key(START), layout.segment_key(START + 100)
    data = store.get(one), store.get(other)
    _replace(store, one, data[1])
    _replace(store, other, data[0])
    problems = _verified(store).problems
    assert len(problems) == 2 and one in problems[0] and other in problems[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda header: replace(header, change_count=7),
        lambda header: replace(header, transaction_count=2),
        lambda header: replace(header, first=None),
        lambda header: replace(header, last=header.first),
        lambda header: replace(header, commit_ts_us_min=0),
        lambda header: replace(header, commit_ts_us_max=0),
        lambda header: replace(header, relations=()),
        lambda header: replace(header, xid=5),
    ],
)
def test_a_header_that_is_wrong_is_found(store: Store, change: Callable[[Header], Header]) -> None:
    _log(store)
    key = layout.segment_key(START)
    _rewrite(store, key, change(segment.read_header(store, key)))
    problems = _verified(store).problems
    assert problems and all(key in problem for problem in problems)


def test_a_relation_that_is_counted_wrong_is_found(store: Store) -> None:
    _log(store)
    key = layout.segment_key(START + 100)
    header = segment.read_header(store, key)
    first, second = header.relations
    _rewrite(store, key, replace(header, relations=(replace(first, change_count=2), second)))
    (problem,) = _verified(store).problems
    assert key in problem and "relations" in problem


def test_transactions_out_of_order_are_found(store: Store) -> None:
    to = begin_writer(store)
    one, other = Wal().rows(T), Wal(START + 100).rows(T)
    header = to.append(Frames.concat([one, other]))
    _rewrite(store, layout.segment_key(START), header, Frames.concat([other, one]))
    (problem,) = _verified(store).problems
    assert "rising order" in problem and layout.segment_key(START) in problem


def test_a_segment_of_another_system_is_found(store: Store) -> None:
    _log(store)
    key = layout.segment_key(START + 500)
    header = segment.read_header(store, key)
    _rewrite(store, key, replace(header, source=replace(header.source, system_id="other")))
    (problem,) = _verified(store).problems
    assert key in problem and "another database system" in problem


@pytest.mark.parametrize("damage", ["missing", "torn", "swapped", "count"])
def test_damaged_parts_are_found(store: Store, damage: str) -> None:
    _, parted = _log(store)
    one, other, _ = (part.key for part in parted.parts)
    match damage:
        case "missing":
            store.delete([one])
        case "torn":
            _replace(store, one, store.get(one)[:-30])
        case "swapped":
            _replace(store, one, store.get(other))
        case "count":
            _rewrite(store, one, replace(segment.read_header(store, one), change_count=9))
    (problem,) = _verified(store).problems
    assert one in problem


def test_damaged_progress_is_found(store: Store) -> None:
    wal, _ = _log(store)
    store.put_new(layout.progress_key(wal.end + 5), json.dumps({"position": 1}).encode())
    (problem,) = _verified(store).problems
    assert "progress/" in problem


def test_a_store_that_fails_is_not_a_damaged_log(store: Store) -> None:
    _log(store)

    def fail(what: str, key: str) -> None:
        if what == "get" and key == layout.segment_key(START + 100):
            raise StoreError("the network is down")

    with pytest.raises(StoreError, match="network"):
        _verified(WatchedStore(store, before=fail))


def test_a_merge_meanwhile_is_no_problem() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    to, wal = begin_writer(store), Wal()
    for _ in range(5):
        to.append(wal.rows(T, 2))
    merger = Merger(store, writer_id="m", policy=MergePolicy(1 << 20, 2, 1.0))
    reads = 0

    def merge(what: str, key: str) -> None:
        nonlocal reads
        reads += what == "get"
        if reads == 6:
            for _ in range(2):
                clock.now_s += 10
                merger.step(clock.now_s)

    result = _verified(WatchedStore(store, before=merge))
    assert result.problems == []
    assert result.end == wal.end
    assert len(list(Reader(store).walk(Offset.whole(START)))) == 1


def _with_base(*lines: bytes) -> tuple[MemoryStore, Base]:
    store = MemoryStore()
    begin(store)
    identity = BaseIdentity(SOURCE, 16_400, START, "test")
    part = put_base_part(store, identity, pa.array(lines, pa.binary()), stretch=0, number=0)
    table = shape(16_400, "id")
    base = Base(SOURCE, table, wire.relation(table), START, 0, BaseOrigin.SNAPSHOT, (part,))
    put_base(store, base)
    return store, base


def test_sound_base_is_counted() -> None:
    store, _ = _with_base(b"1", b"2")
    found = _verified(store)
    assert (found.base_count, found.problems) == (1, [])


def test_damaged_and_missing_parts_of_a_base_are_found() -> None:
    store, base = _with_base(b"1", b"2")
    data = store.get(base.parts[0].key)
    store.delete([base.parts[0].key])
    assert "is missing" in _verified(store).problems[0]
    store.put_new(base.parts[0].key, data[:-40] + b"x" * 40)
    assert base.parts[0].key in _verified(store).problems[0]


def test_damaged_record_of_a_base_is_found() -> None:
    store, base = _with_base(b"1")
    data = store.get(base.key)
    store.delete([base.key])
    store.put_new(base.key, data.replace(b'"timeline":1', b'"timeline":2'))
    assert "is damaged" in _verified(store).problems[0]


def test_base_that_the_log_does_not_go_on_from_is_found() -> None:
    store, base = _with_base(b"1")
    assert base.position == START
    (problem,) = verify_bases(store, begin=Lsn(START + 1))
    assert problem.endswith("after it")
