"""The chain read backwards shows every living segment, whatever is merged or dropped."""

from __future__ import annotations

from tailrace.log import layout
from tailrace.log.history import headers_back, uses_back
from tailrace.log.merge import MergePolicy, Merger
from tailrace.log.retention import RetentionPolicy, retain
from tailrace.storage import MemoryStore, Store
from tests.log.faulty_store import WatchedStore
from tests.log.making import Clock, Wal, begin_writer, shape

OLD, NEW = shape(16_400, "id", name="t"), shape(16_400, "id", "added", name="t")
OTHER = shape(16_500, "id", name="other")
EAGER = MergePolicy(segment_count_min=2, grace_s=0.0)


def _written(store: Store) -> Wal:
    """Two segments of an old shape, one of a new one, and one of another table."""
    wal, writer = Wal(), begin_writer(store)
    for relation in (OLD, OLD, NEW, OTHER):
        writer.append(wal.rows(relation))
    return wal


def _starts(store: Store) -> list[tuple[int, int]]:
    return [(header.start, header.end) for header in headers_back(store)]


def test_headers_come_newest_first(store: Store) -> None:
    _written(store)
    found = _starts(store)
    assert found == sorted(found, reverse=True)
    assert len(found) == 4


def test_merged_segments_take_the_place_of_small_ones() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _written(store)
    merger = Merger(store, writer_id="merger", policy=EAGER)
    assert merger.step(clock.now_s) == 4
    start = _starts(store)[0][0]
    assert _starts(store) == [(start, wal.end)], "the small ones are still there"
    merger.step(clock.now_s)
    assert _starts(store) == [(start, wal.end)], "the small ones are gone"


def test_segments_merged_away_on_the_way_are_found_again() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    _written(store)
    merger = Merger(store, writer_id="merger", policy=EAGER)

    def merge(what: str, key: str) -> None:
        if what == "get" and key == layout.segment_key(starts[2]):
            merger.step(clock.now_s)
            merger.step(clock.now_s)

    starts = [start for start, _ in _starts(store)]
    uses = [use.relation for use in uses_back(WatchedStore(store, before=merge), "public.t")]
    assert uses == [NEW, NEW, OLD], "the merged segment repeats what came before it"


def test_shapes_of_a_table_come_newest_first(store: Store) -> None:
    _written(store)
    assert [use.relation for use in uses_back(store, "public.t")] == [NEW, OLD, OLD]
    assert list(uses_back(store, "public.nothing")) == []


def test_dropped_segments_are_passed_over() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = _written(store)
    retain(store, RetentionPolicy(bytes_max=1), now_s=clock.now_s)
    assert [end for _, end in _starts(store)] == [wal.end]


def test_empty_log_has_no_headers(store: Store) -> None:
    begin_writer(store)
    assert _starts(store) == []
