"""Replays: what a stream has delivered, delivered once more, while it goes on."""

from tailrace.streams.replay.request import Request
from tailrace.streams.replay.requests import Outcome, Progress, Replays

__all__ = ["Outcome", "Progress", "Replays", "Request"]
