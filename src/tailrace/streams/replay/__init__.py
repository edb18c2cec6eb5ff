"""Replays: what a stream has delivered, delivered once more, while it goes on."""

from tailrace.streams.replay.outcome import Outcome
from tailrace.streams.replay.request import Request
from tailrace.streams.replay.requests import Progress, Replays

__all__ = ["Outcome", "Progress", "Replays", "Request"]
