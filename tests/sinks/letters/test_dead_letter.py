"""Many dead letters: whoever counts them asks nothing of the disk, whoever passes them does."""

from __future__ import annotations

from pathlib import Path

from tailrace.log import Reader
from tailrace.log.epochs import Fence, take_epoch
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.letter import Letter
from tailrace.sinks.letters.message import Message, lane_of, place_of
from tailrace.sinks.letters.parked import ToPark
from tailrace.storage import FileStore, MemoryStore
from tailrace.streams.observing import Observer
from tailrace.streams.sights import Letters
from tests.sinks.queue.servers import STREAM, open_queue, webhook
from tests.sinks.source import Source, batch_of


class _CountingStore(FileStore):
    """Notes what is made durable beside what is put."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.synced: list[str] = []

    def sync(self, prefix: str) -> None:
        self.synced.append(prefix)
        super().sync(prefix)


def letter(sequence: int, number: int) -> Letter:
    """One of a batch, in a lane of its own."""
    place, lane = place_of(sequence, number, 0, 1), lane_of("t", str(number))
    message = Message(str(number), place, "public.t", lane, str(number), b"{}")
    return Letter.of(message, ToPark(number, 1, None), sink="webhook", now=0.0)


def test_letters_are_counted_without_waiting_for_the_disk(tmp_path: Path) -> None:
    """A pipeline counts them every few seconds, on the session that holds its locks."""
    store = _CountingStore(tmp_path)
    letters = DeadLetters(store, STREAM)
    for number in range(50):
        letters.put(letter(1, number))
    observer = Observer(Reader(store))
    observer.look({STREAM: None})
    assert observer.letters(STREAM) == Letters(50, 50, 0)
    assert store.synced == []


def test_letters_are_durable_before_delivery_goes_past_them(tmp_path: Path) -> None:
    source = Source()
    for key in (1, 2):
        source.insert(id=key, n=0)
    with webhook() as queue:
        queue.faults.fail(2, Kind.POISON)
        first = open_queue(queue, FileStore(tmp_path))
        first.write(batch_of(1, source.take(), stream=STREAM))
        first.close()
        store = _CountingStore(tmp_path)
        second = open_queue(queue, store)
        source.update(2, n=1)
        second.write(batch_of(2, source.take(), stream=STREAM))
        second.close()
    assert f"streams/{STREAM}/dead_letters/letters/" in store.synced
    assert len(DeadLetters(store, STREAM).names()) == 2


def test_f082_letter_of_a_zombie_is_void_though_its_successor_has_begun_again_behind_it() -> None:
    """A replay that fails goes on under the epoch of its stream, with a later batch."""
    store = MemoryStore()
    # Another stream's epochs: as if this one had looked at its own just before.
    zombie = DeadLetters(store, STREAM, fence=Fence(store, "another", 1))
    take_epoch(store, STREAM, node="")
    successor = take_epoch(store, STREAM, node="")
    for sequence in (3, 5):
        DeadLetters(store, STREAM, fence=successor).take_over(sequence)
    for sequence in (2, 4, 5):
        zombie.put(letter(sequence, sequence))
    assert [name.sequence for name in DeadLetters(store, STREAM).names()] == [2]
