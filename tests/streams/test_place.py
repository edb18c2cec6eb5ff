"""A place may be asked by any thread while its run ends in another."""

from __future__ import annotations

from unittest.mock import Mock

from tailrace.control.stream_reports import Tally
from tailrace.streams.place import Place, Wish
from tailrace.streams.running import RunningStream


class EndingPlace(Place):
    """Its run ends as soon as somebody has seen it."""

    before = Tally()
    run: RunningStream | None = None

    @property
    def _counted(self) -> tuple[Tally, RunningStream | None]:
        found = self.before, self.run
        if self.run is not None:
            self.before, self.run = self.before.plus(self.run.tally), None
        return found

    @_counted.setter
    def _counted(self, counted: tuple[Tally, RunningStream | None]) -> None:
        self.before, self.run = counted


def test_f082_whoever_asks_how_a_stream_is_just_when_its_run_ends_gets_an_answer() -> None:
    """Control would give its session up, and with it the locks of every stream."""
    run = Mock(RunningStream, epoch=7, is_fenced=True, tally=Tally(batch_count=1))
    place = EndingPlace(Wish("orders", None), Mock())
    place.run = run
    assert place.state is run.state
    place.run = run
    assert place.epoch == 7
    place.run = run
    assert place.is_fenced
    assert place.state.taken == () and place.epoch == 0 and not place.is_fenced
    counted = place.tally.batch_count
    place.run = run
    assert [place.tally.batch_count, place.tally.batch_count] == [counted + 1, counted + 1]
