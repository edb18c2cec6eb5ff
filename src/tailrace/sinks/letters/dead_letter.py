"""What a queue or a target did not take, kept beside the log until a person decides about it.

    letters/<table>/<lane>/<place>.<epoch>.json   a message, and why it is here
    floors/<epoch>-<sequence>             with which batch an epoch has begun
    loads/<table>/<sequence>              the table was loaded anew, or emptied at a target
    copies/<place>.json                   a letter on its way to a queue of its own
    requests/<id>.json                    what an operator asks for
    audit/<id>.json                       what became of it

all below streams/<stream>/dead_letters/ in the log's store.

A lane with a letter is parked: whatever comes later in it is put behind it. So the letters of a
lane, by place, are all that its receiver has not seen, in order, and nothing newer was delivered.
A load brings every row of its table: older letters of that table are outdone, park nothing and are
never sent again. Only the pipeline that delivers the stream puts and deletes letters; everybody
else asks it to.

A letter belongs to the epoch that put it. The next epoch copies those of the batch it begins with;
from then on a letter of an older epoch in that batch, or in a later one, is a zombie's: the message
was delivered, or has a letter, under the new epoch. It parks nothing and is never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tailrace.errors import SinkError
from tailrace.failpoint import failpoint
from tailrace.log import layout
from tailrace.log.epochs import Fence
from tailrace.sinks.letters.letter import Letter, LetterLimits, LetterName
from tailrace.sinks.letters.message import Message, offset_part, table_code
from tailrace.sinks.sink import stream_of
from tailrace.storage import ObjectExists, ObjectMissing, Store

_READ_AT_ONCE: Final = 16
"""Each is an object of its own: one after the other, that takes a request's time for each."""


class DeadLetters:
    """The dead letters of one stream."""

    def __init__(
        self,
        store: Store,
        stream: str,
        limits: LetterLimits | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`fence` is needed by who puts and deletes letters."""
        self._store = store
        self._stream = stream
        self._limits = limits or LetterLimits()
        self._fence = fence or Fence(store, stream, 0)
        root = root_of(stream)
        self._letters = f"{root}letters/"
        self._loads = f"{root}loads/"
        self._floors = f"{root}floors/"
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._begun: int | None = None
        """The batch with which this epoch has begun, if it has."""
        self.put_count = 0
        """How many letters have been put, one that failed among them."""

    def names(self) -> list[LetterName]:
        """Every letter there is, by place."""
        loaded = self._loaded()
        # Floors last: a letter that was copied meanwhile is then seen under one epoch or the other.
        entries, floors = self._store.list(self._letters), self._read_floors()
        names = [LetterName.parse(entry.key, entry.size, loaded) for entry in entries]
        living = [name for name in names if not _is_zombies(name, floors)]
        by_place: dict[str, LetterName] = {}
        for name in sorted(living, key=lambda name: name.epoch):
            # Of a letter that is being copied, the copy; whoever deletes it deletes them all.
            older = by_place.get(name.place)
            keys = () if older is None else (older.key, *older.older_keys)
            by_place[name.place] = replace(name, older_keys=keys)
        self._sizes = {name.place: name.size for name in by_place.values()}
        self._bytes = sum(self._sizes.values())
        return [by_place[place] for place in sorted(by_place)]

    def waiting(self) -> list[LetterName]:
        """Those that park their lanes."""
        return [name for name in self.names() if not name.is_outdone]

    def still_waiting(self, names: Iterable[LetterName]) -> list[LetterName]:
        """Those of some that were waiting a while ago whose tables were not loaded or emptied."""
        loaded = self._loaded()
        return [name for name in names if name.sequence >= loaded.get(name.table_code, 0)]

    def newest(self, code: str, lane: str, *, before: int) -> LetterName | None:
        """The last that parks a lane, of batches before this one."""
        loaded = self._loaded()
        entries = self._store.list(f"{self._letters}{code}/{lane}/")
        floors = self._read_floors()
        names = [LetterName.parse(entry.key, entry.size, loaded) for entry in entries]
        found = [
            name
            for name in names
            if name.sequence < before and not name.is_outdone and not _is_zombies(name, floors)
        ]
        return max(found, key=lambda name: (name.place, name.epoch), default=None)

    def settle(self) -> None:
        """Make them durable, before delivery goes past them: what a killed run has left, or a put
        that failed, may not have reached the disk. Takes a while if many rows are parked.
        """
        self._store.sync(self._letters)

    def read(self, name: LetterName) -> Letter:
        """The letter itself; raises SegmentCorrupt, or ObjectMissing if it has just gone."""
        try:
            data = self._store.get(name.key)
        except ObjectMissing:
            # It may have been taken over since it was listed.
            if (own := self._own_key(name)) == name.key:
                raise
            data = self._store.get(own)
        return Letter.from_json(data, key=name.key)

    def messages(self, names: Iterable[LetterName]) -> list[Message]:
        """What some letters hold, to be sent now; raises LogFenced if that is another's to do."""
        try:
            with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="tailrace-letters") as pool:
                return [letter.message for letter in pool.map(self.read, names)]
        finally:
            # Last, because reading takes a while; and what is missing, a successor has sent.
            self._fence.check()

    def put(self, letter: Letter) -> Letter:
        """Keep a letter, durably; returns the one that is kept. Raises SinkError if too many wait,
        StoreError if the store does not take it: either way the stream must not go past the
        message.
        """
        data = letter.to_json()
        if letter.place not in self._sizes:
            self._require_room(len(data))
            self.put_count += 1
        key = self._key(table_code(letter.table), letter.lane, letter.place)
        self._fence.check()
        failpoint("letter.before_put")
        try:
            self._store.put_new(key, data)
        except ObjectExists:
            # The same place is always the same message, and an earlier run knew why it failed.
            letter = Letter.from_json(self._store.get(key), key=key)
        failpoint("letter.after_put")
        self._bytes += len(data) - self._sizes.get(letter.place, 0)
        self._sizes[letter.place] = len(data)
        return letter

    def take_over(self, sequence: int) -> frozenset[str]:
        """This epoch begins with batch `sequence`, which an earlier one may have delivered in part:
        its letters, whose places are returned, become this epoch's, and any that it puts from now
        on are void.
        """
        if not self._fence.epoch:
            return frozenset()
        self._begun = sequence
        theirs = [name for name in self.names() if name.sequence >= sequence]
        for name in theirs:
            if name.key == (own := self._own_key(name)):
                continue
            self._fence.check()
            with suppress(ObjectExists):
                self._store.put_new(own, self._store.get(name.key))
            failpoint("letter.between_copies")
        failpoint("letter.before_floor")
        with suppress(ObjectExists):
            self._store.put_new(f"{self._floors}{self._fence.epoch:016d}-{sequence:016d}", b"")
        failpoint("letter.after_floor")
        self._store.delete(
            key for name in theirs for key in self._keys(name) if key != self._own_key(name)
        )
        return frozenset(name.place for name in theirs)

    def outdo(self, table: str, sequence: int) -> None:
        """A load of the table begins, as batch `sequence`, or that empties a target: older letters
        of it count no more.
        """
        key = f"{self._loads}{table_code(table)}/{sequence:016d}"
        with suppress(ObjectExists):
            self._store.put_new(key, b"")

    def remove(self, names: Sequence[LetterName]) -> None:
        """Delete letters so that they stay deleted: later ones of their lanes are going to pass."""
        self._fence.check()
        failpoint("letter.before_delete")
        # A store deletes in no order: what is left of a lane must be its newest letter.
        newest = {name.table_lane: name.place for name in names}
        last = {name.place for name in names if newest[name.table_lane] == name.place}
        for is_last in (False, True):
            some = [name for name in names if (name.place in last) is is_last]
            self._store.delete([key for name in some for key in self._keys(name)])
            for lane in {name.key.rpartition("/")[0] for name in some}:
                self._store.sync(f"{lane}/")
        failpoint("letter.after_delete")

    def _require_room(self, size: int) -> None:
        count = len(self._sizes)
        if self._limits.have_room(count, self._bytes + size):
            return
        is_replay = self._stream != stream_of(self._stream)
        # A replay's letters are never redriven: it ends, and holds up the log no longer.
        advice = "mend the receiver and ask again" if is_replay else "redrive or discard"
        goes_on = "" if is_replay else "; the stream goes on by itself"
        raise SinkError(
            f"the dead letters of stream {self._stream} are full: {count} letters,"
            f" {self._bytes} bytes",
            hint=f"see `tailrace dlq ls {self._stream}`, then {advice}{goes_on}",
            retry=not is_replay,
        )

    def _keys(self, name: LetterName) -> set[str]:
        """All under which a letter may be, or it would come back without its newest copy."""
        return {self._own_key(name), name.key, *name.older_keys}

    def _own_key(self, name: LetterName) -> str:
        """The key of a letter that this epoch has taken over, or may have; else as it is listed."""
        if self._begun is None or name.sequence < self._begun:
            return name.key
        return self._key(name.table_code, name.lane, name.place)

    def _key(self, code: str, lane: str, place: str) -> str:
        return f"{self._letters}{code}/{lane}/{place}.{self._fence.epoch}.json"

    def _read_floors(self) -> dict[int, int]:
        """By epoch, the first batch that it has delivered, whatever it has begun with since."""
        entries = self._store.list(self._floors)
        pairs = [entry.key.removeprefix(self._floors).split("-") for entry in entries]
        return {int(epoch): int(sequence) for epoch, sequence in sorted(pairs, reverse=True)}

    def _loaded(self) -> dict[str, int]:
        """By the code of a table, the number of its newest load."""
        found: dict[str, int] = {}
        for entry in self._store.list(self._loads):
            code, sequence = entry.key.removeprefix(self._loads).split("/")
            found[code] = max(found.get(code, 0), int(sequence))
        return found


def root_of(stream: str) -> str:
    """Where everything about a stream's dead letters is."""
    return f"{layout.STREAMS}{stream}/dead_letters/"


def lanes_of(names: Iterable[LetterName]) -> set[tuple[str, str]]:
    """The tables' codes and lanes of some letters."""
    return {name.table_lane for name in names}


def first_letters(names: Iterable[LetterName]) -> dict[tuple[str, str], str]:
    """By the table's code and the lane, where the first of these letters, by place, stands."""
    found: dict[tuple[str, str], str] = {}
    for name in names:
        found.setdefault(name.table_lane, offset_part(name.place))
    return found


def _is_zombies(name: LetterName, floors: dict[int, int]) -> bool:
    """Whether a later epoch has delivered the batch of this letter itself."""
    return any(epoch > name.epoch and name.sequence >= floor for epoch, floor in floors.items())
