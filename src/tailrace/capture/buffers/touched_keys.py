"""Which keys the buffered rows of a table touch, and which rows must wait because of them.

A key is known by its text, before and after a change, and by the hash that came with the row: two
texts may be one key (1.0 and 1.00), and a hash is of the new key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.capture.buffers.ordering import ABSENT, ShapedRows, keys_before_and_after
from tailrace.postgres.binaries import Array


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """Some keys of one table."""

    texts: Array
    hashes: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        """No key at all."""
        return cls(pa.array([], pa.binary()), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.texts)

    def joined(self, others: TouchedKeys) -> TouchedKeys:
        """These and others."""
        texts = pc.unique(pa.concat_arrays([self.texts, others.texts]))
        return TouchedKeys(texts, np.union1d(self.hashes, others.hashes))


@dataclass(frozen=True, slots=True)
class TouchingRows:
    """For each row, in the order recorded, the numbers of its keys' texts, which are the same
    unless it changes its key, and that of its hash; -1 if it came without.
    """

    before: NDArray[np.int64]
    after: NDArray[np.int64]
    hashed: NDArray[np.int64]
    texts: Array
    hashes: NDArray[np.int64]

    def touch(self, keys: TouchedKeys) -> bool:
        """Whether any row touches one of these."""
        is_one = pc.is_in(self.texts, value_set=keys.texts).to_numpy(zero_copy_only=False)
        return bool(is_one.any() or np.isin(self.hashes, keys.hashes).any())

    def waiting(
        self, is_deep: NDArray[np.bool_], known: TouchedKeys
    ) -> tuple[NDArray[np.bool_], TouchedKeys]:
        """Which rows must wait if those that `is_deep` must, and those of keys that are `known`;
        and of which keys rows wait then.
        """
        place, count = np.arange(len(is_deep)), len(is_deep)
        # From which row on each key waits. The last one is of rows without a hash: it never does.
        text_from = np.full(len(self.texts), count)
        hash_from = np.full(len(self.hashes) + 1, count)
        is_known = pc.is_in(self.texts, value_set=known.texts).to_numpy(zero_copy_only=False)
        text_from[is_known] = -1
        hash_from[:-1][np.isin(self.hashes, known.hashes)] = -1
        for begins, numbers in ((text_from, self.before), (text_from, self.after)):
            np.minimum.at(begins, numbers[is_deep], place[is_deep])
        np.minimum.at(hash_from, self.hashed[is_deep], place[is_deep])
        hash_from[-1] = count
        for row in np.flatnonzero(self.before != self.after).tolist():
            self._pass_on(row, text_from, hash_from)
        earliest = np.minimum(text_from[self.before], text_from[self.after])
        waits = place >= np.minimum(earliest, hash_from[self.hashed])
        texts = self.texts.filter(pa.array((text_from < count) & ~is_known))
        hashes = self.hashes[hash_from[:-1] < count]
        keys = TouchedKeys(pa.concat_arrays([known.texts, texts]), np.union1d(known.hashes, hashes))
        return waits, keys

    def _pass_on(
        self, row: int, text_from: NDArray[np.int64], hash_from: NDArray[np.int64]
    ) -> None:
        """If the row, which changes its key, waits for the one, its other key waits from there."""
        before, after, hashed = self.before[row], self.after[row], self.hashed[row]
        if min(text_from[before], text_from[after], hash_from[hashed]) <= row:
            text_from[before] = min(text_from[before], row)
            text_from[after] = min(text_from[after], row)
            if hashed >= 0:
                hash_from[hashed] = min(hash_from[hashed], row)


def read_touched(groups: Sequence[ShapedRows], recorded: NDArray[np.intp]) -> TouchingRows:
    """What the rows of these groups touch, in the order recorded; all have a key."""
    old, new = keys_before_and_after(groups, recorded)
    absent = pa.scalar(ABSENT, pa.binary())
    before = pc.if_else(pc.not_equal(old, absent), old, new)
    after = pc.if_else(pc.not_equal(new, absent), new, old)
    both = pa.concat_arrays([before, after]).dictionary_encode()
    numbers = both.indices.to_numpy().astype(np.int64)
    has_hash = np.concatenate([group.has_hash for group in groups])[recorded]
    hash_of = np.concatenate([group.integers("key_hash") for group in groups])[recorded]
    hashes, hashed = np.unique(hash_of, return_inverse=True)
    return TouchingRows(
        numbers[: len(recorded)],
        numbers[len(recorded) :],
        np.where(has_hash, hashed.reshape(-1), -1),
        both.dictionary,
        hashes,
    )
