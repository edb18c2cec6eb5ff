"""What is seen of the log costs no more than it must: it is looked at every second."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.errors import StoreError
from tailrace.log import Link, Reader
from tailrace.log.tip import Tip
from tailrace.model import Lsn, Offset
from tailrace.storage import MemoryStore
from tailrace.streams.sights import Sights
from tests.log.faulty_store import WatchedStore
from tests.spark.made_log import MadeLog, Table


class CountingReader(Reader):
    """Counts how often the end is looked up, and how often the log is walked."""

    tip_count = walk_count = 0

    def tip(self) -> Tip:
        self.tip_count += 1
        return super().tip()

    def walk(self, after: Offset) -> Iterator[Link]:
        self.walk_count += 1
        return super().walk(after)


def test_end_is_looked_up_once_for_all_streams_and_an_age_once_for_a_position() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    ends = [log.insert(table, key).commit_lsn for key in range(3)]
    reader = CountingReader(log.store)
    sights = Sights(reader)
    positions: dict[str, Lsn | None] = {"a": ends[0], "b": ends[1], "c": ends[2], "new": None}
    for round_count in range(1, 4):
        sights.look(positions)
        assert (reader.tip_count, reader.walk_count) == (round_count, 2)
    assert sights.lag("a", ends[0])[0] == ends[2] - ends[0]
    assert sights.lag("c", ends[2]) == (0, 0.0) and sights.lag("new", None) == (None, None)
    sights.look(positions | {"a": ends[1]})
    assert reader.walk_count == 3
    older, newer = sights.lag("b", ends[1])[1], sights.lag("a", ends[1])[1]
    assert older is not None and newer is not None
    sights.look(positions | {"a": ends[2]})
    assert sights.lag("a", ends[2]) == (0, 0.0), "it has caught up"


def test_what_a_lost_slot_has_left_is_not_known_from_before_it_was_forgotten() -> None:
    forget_while = False

    def before(what: str, key: str) -> None:
        if forget_while:
            sights.forget_lost()

    sights = Sights(Reader(WatchedStore(MadeLog(MemoryStore()).store, before=before)))
    sights.look({})
    assert sights.lost == {}
    forget_while = True
    sights.forget_lost()
    sights.look({})
    assert sights.lost is None, "the look had begun before"
    forget_while = False
    sights.look({})
    assert sights.lost == {}


def test_lag_that_cannot_be_read_is_left_out() -> None:
    is_denied = False

    def deny(what: str, key: str) -> None:
        if is_denied:
            raise StoreError("access denied", retry=False)

    log = MadeLog(MemoryStore())
    end = log.insert(Table(), 1).commit_lsn
    sights = Sights(Reader(WatchedStore(log.store, before=deny)))
    sights.look({"a": end})
    assert sights.lag("a", end) == (0, 0.0)
    is_denied = True
    sights.look({"a": end})
    assert sights.lag("a", end) == (None, None)
