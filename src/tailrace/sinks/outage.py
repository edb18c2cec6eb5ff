"""A sink that takes nothing at all: no row is the reason, so whoever delivers tries again later.

That holds for what passes by itself, and as well for what a person must see to at the sink: a right
that is missing, a bucket that is not there. Nobody has to resume the stream when that is done.
"""

from __future__ import annotations

from typing import Final

from tailrace.errors import SinkError

_GOES_ON: Final = "; delivery then goes on by itself"


def outage(message: str, *, hint: str, is_cured_there: bool = True) -> SinkError:
    """The error of such a sink; `hint` says what to see to. Delivery goes on by itself then, if it
    `is_cured_there`: it does not pass without a person, and needs nothing of this process.
    """
    told = f"{hint}{_GOES_ON}" if hint and is_cured_there else hint
    return SinkError(message, hint=told, retry=True)


def at_once(error: SinkError) -> SinkError:
    """The same for who does not wait for the sink: it is an end, and nothing goes on."""
    return SinkError(str(error), hint=error.hint.removesuffix(_GOES_ON), retry=False)
