"""Which requests for a replay are refused, and which ranges the others mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import NoReturn

import pytest

from tailrace.errors import ConfigError, TailraceError
from tailrace.log import Reader
from tailrace.log.retention import RetentionPolicy, reader_positions, retain
from tailrace.model import Offset, Relation
from tailrace.sinks import Batch
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.memory import MemorySink
from tailrace.storage import MemoryStore
from tailrace.streams.removing import remove_stream
from tailrace.streams.replay import Request
from tailrace.streams.replay.pace import Pace
from tailrace.streams.replay.request import Bound, to_us
from tailrace.streams.replay.window import available
from tests.log.faulty_store import Killed
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed, time_of
from tests.streams.running import BadSink


@pytest.fixture
def log() -> MadeLog:
    return MadeLog(MemoryStore())


@pytest.fixture
def flow(log: MadeLog) -> Replayed:
    """Four transactions, delivered."""
    table, sink = Table(), MemorySink()
    for number in range(1, 5):
        log.insert(table, number)
    flow = Replayed(log.store, lambda _: sink)
    flow.go_on()
    return flow


def refusal(flow: Replayed, since: int, until: int | None = None) -> TailraceError:
    with pytest.raises(ConfigError) as caught:
        flow.ask(since, until)
    return caught.value


def test_f105_inverted_and_future_requests_are_refused(flow: Replayed) -> None:
    inverted = refusal(flow, time_of(3), time_of(2))
    assert "after its end" in str(inverted) and inverted.hint
    now = datetime.now(UTC)
    future = refusal(flow, to_us(now + timedelta(hours=1)), to_us(now + timedelta(hours=2)))
    assert "in the future" in str(future)
    assert flow.replays.current(STREAM) is None


def test_f105_second_request_is_refused_until_the_first_is_over(flow: Replayed) -> None:
    flow.ask(time_of(1), time_of(2))
    other = refusal(flow, time_of(2))
    assert "is under way" in str(other) and "--cancel" in other.hint
    flow.serve()
    assert flow.replay(time_of(1), time_of(2)).state == "done"


def test_f105_empty_window_is_done_at_once_and_says_so(flow: Replayed) -> None:
    outcome = flow.replay(time_of(2) + 1, time_of(3) - 1)
    assert (outcome.state, outcome.change_count) == ("done", 0)
    assert "nothing was committed" in outcome.note
    later = flow.replay(time_of(5), time_of(6))
    assert (later.state, later.change_count) == ("done", 0)


def test_f093_f105_request_before_what_retention_has_kept_is_refused_with_the_first_time(
    log: MadeLog, flow: Replayed
) -> None:
    # Before the log began there was nothing to miss.
    assert flow.replay(time_of(-5)).change_count == 4
    base = log.put_base(Table().relation, [], position=Reader(log.store).tip().segment_end)
    retain(log.store, RetentionPolicy(age_s=0.0), now_s=4e9)
    found = available(Reader(log.store))
    assert found is not None and found[1] == time_of(4) and base.position
    outcome = flow.replay(time_of(1), time_of(4))
    assert outcome.state == "failed"
    assert "does not go back" in outcome.note and "begin the replay at" in outcome.note


class Dying(MemorySink):
    """Ends the process at its first batch, or does what it is told to."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def write(self, batch: Batch) -> None:
        self._act()

    def committed(self, stream: str, relations: Iterable[Relation]) -> dict[str, int]:
        return dict.fromkeys((relation.qualified for relation in relations), 0)


def die() -> NoReturn:
    raise Killed


def test_f093_log_is_kept_for_a_replay_until_it_is_over(log: MadeLog, flow: Replayed) -> None:
    opened, flow.open_sink = flow.open_sink, lambda _: Dying(die)
    flow.ask(time_of(2))
    with pytest.raises(Killed):
        flow.serve()
    kept = reader_positions(log.store)
    assert kept[f"{STREAM}.replay.1"] < kept[STREAM]
    progress = flow.replays.progress(STREAM)
    assert progress is not None and progress.has_begun and progress.share == 0.0
    flow.open_sink = opened
    assert flow.serve().change_count == 3
    assert list(reader_positions(log.store)) == [STREAM]


def test_replay_of_a_stream_that_is_removed_goes_with_it(log: MadeLog, flow: Replayed) -> None:
    flow.open_sink = lambda _: Dying(die)
    flow.ask(time_of(2))
    with pytest.raises(Killed):
        flow.serve()
    remove_stream(log.store, STREAM)
    last = flow.replays.last(STREAM)
    assert last is not None and (last.state, last.note) == ("cancelled", "the stream was removed")
    assert flow.replays.current(STREAM) is None and not reader_positions(log.store)


def test_replay_ends_where_the_stream_is(log: MadeLog, flow: Replayed) -> None:
    table = Table()
    log.insert(table, 9)
    outcome = flow.replay(time_of(4))
    assert outcome.change_count == 1 and "delivered anyway" in outcome.note


def test_f105_window_that_the_stream_has_not_come_to_yet_is_not_said_to_be_empty(
    log: MadeLog, flow: Replayed
) -> None:
    log.insert(Table(), 9)
    outcome = flow.replay(time_of(5))
    assert (outcome.state, outcome.change_count) == ("done", 0)
    assert "where the stream is: what follows is delivered anyway" in outcome.note
    empty = flow.replay(time_of(4) + 1, time_of(5) - 1)
    assert empty.note.startswith("nothing was committed")


def test_replay_leaves_out_the_batch_that_is_under_way(log: MadeLog) -> None:
    table, out = Table(), StringIO()
    sink = ConsoleSink(out)
    log.insert(table, 1)
    flow = Replayed(log.store, lambda _: sink)
    flow.go_on()
    log.insert(table, 2)
    flow.open_sink = lambda _: BadSink(sink, Killed())
    with pytest.raises(Killed):
        flow.go_on()
    flow.open_sink = lambda _: sink
    outcome = flow.replay(time_of(1))
    assert outcome.change_count == 1 and "delivered anyway" in outcome.note
    assert "(replay" in out.getvalue()


def test_table_and_key_must_be_the_streams(flow: Replayed) -> None:
    flow.ask(time_of(1), tables=["public.others"])
    outcome = flow.serve()
    assert outcome.state == "failed" and "public.orders" in outcome.note
    flow.ask(time_of(1), key=[("note", "x")])
    assert "is not a key column" in flow.serve().note


def test_cancelled_before_it_began_and_while_it_runs(
    flow: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.ask(time_of(1))
    assert flow.replays.cancel(STREAM) is not None
    assert (flow.serve().state, flow.replays.cancel(STREAM)) == ("cancelled", None)
    monkeypatch.setattr("tailrace.streams.replay.run.CANCEL_S", 0.0)
    flow.changes_max = 1
    flow.open_sink = lambda _: Dying(lambda: flow.replays.cancel(STREAM))
    flow.ask(time_of(1))
    outcome = flow.serve()
    assert (outcome.state, outcome.change_count) == ("cancelled", 1)
    assert flow.replays.last(STREAM) == outcome


def test_request_reads_back_as_it_was_written() -> None:
    now = datetime.now(UTC)
    bounds: list[Bound] = [time_of(1), Offset.parse("0/16B3748:3"), Offset.whole(7)]
    for since in bounds:
        request = Request.new(
            STREAM, since, None, now=now, tables=["public.a"], key=[("id", "1")], rate=5
        )
        assert Request.from_json(request.to_json()) == request


def test_pace_waits_as_long_as_the_rate_says() -> None:
    now, waited = [100.0], list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    pace = Pace(10, wait, clock=lambda: now[0])
    for _ in range(3):
        pace.passed(5)
    assert waited == pytest.approx([0.5, 0.5, 0.5])
    Pace(0, wait, clock=lambda: now[0]).passed(1000)
    assert len(waited) == 3
