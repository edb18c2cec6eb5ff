"""The log's writer for a stream that may hold buffered rows: translates, then appends.

A message of ours that says how far the buffers are in the log becomes the note of the segment that
it is in, so that it is found again from headers alone.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from tailrace.capture.buffers.translate import Translator
from tailrace.errors import SegmentCorrupt
from tailrace.log import Header, Writer
from tailrace.log.header import Note
from tailrace.model import Lsn
from tailrace.postgres.frames import Frames
from tailrace.postgres.pgoutput import Tag, parse_message

MARK: Final = b"tailrace.mark"
"""The prefix of a message whose content is a note."""


class TranslatingWriter:
    """As the writer that it wraps. Not thread-safe."""

    def __init__(self, writer: Writer, translator: Translator) -> None:
        self._writer = writer
        self._translator = translator

    @property
    def position(self) -> Lsn:
        """Up to where the log is durable."""
        return self._writer.position

    def append(self, frames: Frames, note: Note | None = None) -> Header:
        """Seal whole transactions, or the Commit that ends the parts; durable on return."""
        waited = self._translator.end_part()
        if len(waited):
            self._writer.put_part(waited)
        translated = self._translator.translate(frames)
        return self._writer.append(translated, note or _mark_in(frames))

    def put_part(self, frames: Frames, *, is_in_order: bool = False) -> None:
        """Store a piece of the transaction that is being received. Rows that are in order, as far
        as they are not in the same piece, need not wait for its end.
        """
        translate = self._translator.translate if is_in_order else self._translator.translate_part
        made = translate(frames)
        if len(made):
            self._writer.put_part(made)

    def discard_parts(self) -> None:
        """Forget the parts put so far."""
        self._translator.forget_part()
        self._writer.discard_parts()

    def put_progress(self, position: Lsn) -> None:
        """Make an idle position durable."""
        self._writer.put_progress(position)


def _mark_in(frames: Frames) -> Note | None:
    """What the last mark among these frames says."""
    for place in reversed(np.flatnonzero(frames.tags == Tag.MESSAGE).tolist()):
        message = parse_message(frames.frame(place))
        if message.prefix == MARK:
            try:
                note: dict[str, Any] = json.loads(message.content)
            except ValueError as error:
                raise SegmentCorrupt("a mark of ours cannot be read") from error
            return note
    return None
