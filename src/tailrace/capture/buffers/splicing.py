"""A run of frames in which some are replaced, some left out, and others put between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.postgres.binaries import Array
from tailrace.postgres.frames import Frames


class Splice:
    """Collects what is to be done to one run, and does it all at once."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._keep = np.ones(len(frames), dtype=np.bool_)
        self._made: list[Array] = []
        self._places: list[NDArray[np.intp]] = []
        self._lsn: list[NDArray[np.uint64]] = []
        self._put: list[tuple[int, bytes]] = []

    def leave_out(self, places: Sequence[int]) -> None:
        """Without these frames."""
        self._keep[list(places)] = False

    def replace(
        self,
        places: NDArray[np.intp],
        targets: NDArray[np.intp],
        made: Array,
        lsn: NDArray[np.uint64],
    ) -> None:
        """Put `made` at `targets`, in place of the frames at `places`."""
        self._keep[places] = False
        self._places.append(targets)
        self._made.append(made)
        self._lsn.append(lsn)

    def put_before(self, place: int, frame: bytes) -> None:
        """One more frame, just before whatever is at `place`."""
        self._put.append((place, frame))

    def joined(self) -> Frames:
        """The run as it is to be."""
        frames, kept = self._frames, np.flatnonzero(self._keep)
        put = np.array([place for place, _ in self._put], dtype=np.intp)
        pieces = [_as_array(frames).take(kept), *(each.cast(_BINARY) for each in self._made)]
        pieces.append(pa.array([frame for _, frame in self._put], _BINARY))
        # What is put before a place has an even number, what stands there the odd one after it.
        keys = np.concatenate([2 * kept + 1, *(2 * each + 1 for each in self._places), 2 * put])
        order = np.argsort(keys, kind="stable")
        lsn = np.concatenate([frames.lsn[kept], *self._lsn, frames.lsn[put]])[order]
        return _as_frames(pa.concat_arrays(pieces).take(order), lsn)


_BINARY = pa.large_binary()


def _as_array(frames: Frames) -> Array:
    offsets = np.ascontiguousarray(frames.offsets)
    data = np.ascontiguousarray(frames.data)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    return pa.Array.from_buffers(_BINARY, len(frames), buffers)


def _as_frames(values: Array, lsn: NDArray[np.uint64]) -> Frames:
    _, offsets, data = values.buffers()
    return Frames(
        np.frombuffer(memoryview(data or b""), np.uint8),
        np.frombuffer(memoryview(offsets or b""), np.int64)[: len(values) + 1],
        lsn,
    )
