"""How each change was captured, as the log has it.

A frame that was made of a row that a trigger has buffered has the number of that row in place of
an LSN, with the top bit set. No LSN has it: a position's top byte is an era of at most 127.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.model import Origin
from tailrace.postgres.binaries import Array
from tailrace.postgres.frames import Frames

_OF_TOP_BIT: Final = pa.array([str(Origin.WAL), str(Origin.TRIGGER)], pa.string())


def origins(origin: Origin, count: int) -> Array:
    """The same for all."""
    return pa.repeat(pa.scalar(str(origin), pa.string()), count)


def origins_of(frames: Frames, places: NDArray[np.intp]) -> Array:
    """That of each of these frames."""
    is_buffered = frames.is_buffered[places]
    if not is_buffered.any():
        return origins(Origin.WAL, len(places))
    return _OF_TOP_BIT.take(is_buffered.astype(np.int8))
