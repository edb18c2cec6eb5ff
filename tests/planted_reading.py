"""Bugs of reading the stream: what is gathered, and when it is sealed."""

from __future__ import annotations

from typing import Final

from tests.planted import CORE, TIMING, Mutant

READING_MUTANTS: Final = (
    Mutant(
        "keepalives are taken for rows",
        "postgres/frames.py",
        "            offsets = np.append(offsets[:-1][is_data], offsets[-1])\n"
        "            starts = starts[is_data]\n",
        "            pass\n",
        ("tests/postgres/test_frames.py", *CORE),
    ),
    Mutant(
        "small transactions are sealed one by one without a limit",
        "capture/core.py",
        "        return self._complete.data_bytes + of_transactions\n",
        "        return self._complete.data_bytes\n",
        TIMING,
    ),
    Mutant(
        "what was gathered when the stream ended is not read",
        "capture/streaming.py",
        "            if wire.has_ended:\n                break\n",
        "",
        ("tests/capture/test_streaming.py",),
    ),
    Mutant(
        "more is gathered while a job waits for the writer",
        "capture/core.py",
        "        return not (self._queue or self._trickle.allows(next_bytes, now))\n",
        "        return not self._trickle.allows(next_bytes, now)\n",
        TIMING,
    ),
)
