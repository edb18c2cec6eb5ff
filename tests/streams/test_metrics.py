"""What Prometheus reads about streams, from the endpoint itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tailrace.control.stream_reports import Tally
from tailrace.control.streams import Status
from tailrace.errors import SinkError
from tailrace.exposition import ADDRESS, serve
from tailrace.model import Lsn, Offset
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.letter import Letter
from tailrace.sinks.letters.message import Message, lane_of, place_of
from tailrace.sinks.letters.parked import ToPark
from tailrace.sinks.queue.outbox import Outbox
from tailrace.storage import MemoryStore, Store
from tailrace.streams import StreamState
from tailrace.streams.delivery import Delivered
from tailrace.streams.metrics import StreamMetrics
from tailrace.streams.place import Wish
from tests.log.making import Wal, begin_writer, shape

LED = Wish("lake", None)
POSITION = 0x2000


@dataclass
class At:
    """A place, as a pipeline has it."""

    wish: Wish
    state: StreamState
    tally: Tally = field(default_factory=Tally)
    epoch: int = 3
    is_fenced: bool = False


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """By the name and the labels of each sample, its value."""
    with urlopen(f"http://{ADDRESS}:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("tailrace_stream_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def put_letters(store: Store, keys: Sequence[str]) -> None:
    letters, outbox = DeadLetters(store, "lake"), Outbox(store, "lake")
    for at, key in enumerate(keys):
        place = place_of(1, at, 0, 1)
        message = Message(str(at), place, "public.t", lane_of("t", key), key, b"{}")
        letter = letters.put(Letter.of(message, ToPark(at, 1, None), sink="webhook", now=0.0))
        outbox.put(letter)


def test_every_stream_tells_its_state_its_lag_and_its_counters() -> None:
    store, wal = MemoryStore(), Wal()
    end = begin_writer(store).append(wal.rows(shape())).end
    put_letters(store, ["a", "a", "b"])
    metrics = StreamMetrics("main", store)
    port = serve(metrics.registry, 0, setting="pipeline.metrics_port")
    assert not scrape(port), "before any stream is known"
    down = StreamState(
        "lake", Delivered(Offset.whole(Lsn(end - 8))), SinkError("down"), is_stopped=False
    )
    fine = StreamState("hook", Delivered(Offset.whole(end)), None, is_stopped=False)
    led = At(LED, down, Tally(4, 100, 2, 5, 1_500_000))
    hook = At(replace(LED, name="hook"), fine)
    other = At(replace(LED, name="other", is_led=False), replace(fine, name="other"))
    paused = At(replace(LED, name="paused", is_paused=True), replace(fine, name="paused"))
    metrics.watch(lambda: [led, hook, other, paused])
    found = scrape(port)
    told = {name: value for (name, *labels), value in found.items() if labels == ["main", "lake"]}
    assert told.pop("lag_seconds") > 0
    assert told == {
        "leader": 1,
        "epoch": 3,
        "position_lsn": end - 8,
        "lag_bytes": 8,
        "dead_letters": 3,
        "parked_keys": 2,
        "dead_letter_copies": 3,
        "changes_total": 100,
        "failures_total": 2,
        "retries_total": 5,
        "batch_seconds_count": 4,
        "batch_seconds_sum": 1.5,
    }
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    assert not [name for (name, *_) in found if f"`{name}" not in page], "the page names them all"
    states = {key[3]: key[2] for key, value in found.items() if key[0] == "status" and value}
    assert states == {"lake": Status.FAILOVER, "hook": Status.HEALTHY, "paused": Status.PAUSED}
    assert found["lag_bytes", "main", "hook"] == found["lag_seconds", "main", "hook"] == 0
    assert [key[0] for key in found if "other" in key] == ["leader"], "its leader tells the rest"
    assert found["leader", "main", "other"] == 0


def test_log_that_cannot_be_read_leaves_out_what_it_would_say() -> None:
    metrics = StreamMetrics("main", MemoryStore())
    state = StreamState("lake", Delivered(Offset.whole(Lsn(POSITION))), None, is_stopped=False)
    metrics.watch(lambda: [At(LED, state, is_fenced=True), At(replace(LED, name="b"), state)])
    found = scrape(serve(metrics.registry, 0, setting="pipeline.metrics_port"))
    assert found["position_lsn", "main", "b"] == POSITION
    assert ("lag_bytes", "main", "b") not in found
    assert found["leader", "main", "lake"] == 0, "it was fenced"
