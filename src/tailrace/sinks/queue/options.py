"""How a queue sink behaves, whatever queue it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.sinks.letters.letter import LetterLimits
from tailrace.sinks.option_values import count, one_of, seconds
from tailrace.sinks.queue.json_columns import Style
from tailrace.sinks.queue.limits import WindowLimits

OPTIONS: Final = (
    *("envelope", "request_count", "window_count", "window_bytes", "retry_max_attempts"),
    *("retry_max_elapsed", "on_exhausted", "dead_letter_count", "dead_letter_bytes"),
    "dead_letter_queue",
)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """`request_count` requests may be under way side by side."""

    envelope: Style = Style.DEBEZIUM
    request_count: int = 4
    window: WindowLimits = field(default_factory=WindowLimits)
    letters: LetterLimits = field(default_factory=LetterLimits)

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> QueueOptions:
        """From the options of a sink, each of which has a default; raises ConfigError."""
        window, letters = WindowLimits(), LetterLimits()
        return cls(
            envelope=Style(one_of(options, "envelope", tuple(Style))),
            request_count=count(options, "request_count", cls().request_count),
            window=WindowLimits(
                message_count=count(options, "window_count", window.message_count),
                bytes_max=count(options, "window_bytes", window.bytes_max),
                attempt_count=count(options, "retry_max_attempts", window.attempt_count),
                elapsed_s=seconds(options, "retry_max_elapsed", window.elapsed_s),
                parks_exhausted=one_of(options, "on_exhausted", ("stop", "dead_letter"))
                == "dead_letter",
            ),
            letters=LetterLimits(
                letter_count=count(options, "dead_letter_count", letters.letter_count),
                bytes_max=count(options, "dead_letter_bytes", letters.bytes_max),
            ),
        )
