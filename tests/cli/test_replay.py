"""`tailrace replay`: what an operator asks for and sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cli import replay
from tailrace.cli.other_sink import read_other_sink
from tailrace.control.streams import Definition, Origin
from tailrace.errors import ConfigError
from tailrace.sinks import open_sink
from tailrace.storage import FileStore
from tailrace.streams.kept_roster import Kept, keep_roster
from tailrace.streams.removing import remove_stream
from tailrace.streams.replay import Progress, Replays
from tests.cli.project import Project
from tests.log.faulty_store import Killed
from tests.spark.made_log import MadeLog, Table
from tests.streams.replaying import STREAM, Replayed
from tests.streams.running import BadSink, lake_table

FROM, TO = "2000-01-01 00:11:41", "2000-01-01 00:11:42"
"""The first two transactions of a made log."""


@pytest.fixture
def log(project: Project) -> MadeLog:
    return MadeLog(FileStore(Path(project.directory, "log")))


@pytest.fixture
def flow(project: Project, log: MadeLog) -> Replayed:
    """A stream of three transactions, each of two changes, delivered to a table of changes."""
    lake = project.directory / "lake"
    stream = f"{{{STREAM}: {{sink: {{path: {lake}, mode: append}}}}}}"
    config = f"log: {{url: 'file:log'}}\nstreams: {stream}\n"
    (project.directory / "tailrace.yaml").write_text(config)
    table = Table()
    for first in (1, 3, 5):
        log.insert(table, first, 2)
    options = {"type": "delta", "path": str(lake), "mode": "append", "engine": "deltalake"}
    flow = Replayed(log.store, lambda _: open_sink(options))
    flow.go_on()
    return flow


@pytest.fixture
def pipeline(flow: Replayed) -> Iterator[None]:
    """Carries out whatever is asked for."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.02):
            if flow.replays.current(STREAM) is not None:
                flow.serve()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_replay_is_watched_to_its_end(project: Project, flow: Replayed, pipeline: None) -> None:
    ended = project.run("replay", STREAM, "--from", FROM, "--to", TO)
    assert (ended.code, ended.out) == (0, "done: 4 changes\n")
    assert f"replay of {STREAM}" in ended.err
    assert lake_table(project.directory / "lake").num_rows == 10
    shown = project.run("replay", STREAM).out.splitlines()
    assert "done: 4 changes" in shown[0] and shown[0].startswith("the last replay")
    assert FROM in shown[1] and shown[1].startswith("the log has what was committed")


def test_dry_run_counts_and_asks_for_nothing(project: Project, flow: Replayed) -> None:
    ended = project.run("replay", STREAM, "--from", FROM, "--to", TO, "--dry-run")
    assert ended.code == 0 and "public.orders  4 changes" in ended.out
    # The end of the range lies in the middle of a merged segment, or a time between two.
    ended = project.run("replay", STREAM, "--from", FROM, "--to", TO, "--key", "id=1", "--dry-run")
    assert "at most" in ended.out, "it does not look at keys"
    ended = project.run("replay", STREAM, "--from", FROM, "--key", "idd=1", "--dry-run")
    assert ended.failure == (2, "idd is not a key column of public.orders", "key: id")
    ended = project.run("replay", STREAM, "--from", "2000-01-01 00:11:41.5", "--dry-run")
    assert "public.orders  4 changes" in ended.out
    assert flow.replays.current(STREAM) is None


def test_dry_run_of_a_stream_of_sql_judges_by_its_own_sink(
    project: Project, flow: Replayed
) -> None:
    (project.directory / "tailrace.yaml").write_text("log: {url: 'file:log'}\n")
    seen(flow, {"type": "delta", "path": "/lake", "mode": "history"})
    code, error, hint = project.run("replay", STREAM, "--from", FROM, "--dry-run").failure
    assert code == 2 and "every version" in error and "--to-sink" in hint
    for sink in ({"type": "delta", "path": "/lake"}, {"type": "console"}):
        seen(flow, dict(sink))
        assert "6 changes" in project.run("replay", STREAM, "--from", FROM, "--dry-run").out


def test_dry_run_leaves_out_the_batch_that_is_under_way_as_a_replay_does(
    project: Project, log: MadeLog, flow: Replayed
) -> None:
    log.insert(Table(), 7, 2)
    own, flow.open_sink = flow.open_sink, lambda name: BadSink(own(name), Killed())
    with pytest.raises(Killed):
        flow.go_on()
    flow.open_sink = own
    told = project.run("replay", STREAM, "--from", FROM, "--dry-run").out
    assert "public.orders  6 changes" in told and "delivered anyway" in told


def test_dry_run_of_a_stream_whose_sink_has_no_such_mode_says_so(
    project: Project, flow: Replayed
) -> None:
    for kind in ("delta", "postgres"):
        seen(flow, {"type": kind, "path": "/lake", "mode": "merge"})
        code, error, hint = project.run("replay", STREAM, "--from", FROM, "--dry-run").failure
        assert code == 2 and f"unknown {kind} mode 'merge'" in error and "upsert" in hint


def test_replay_whose_stream_is_removed_meanwhile_is_not_watched_for_ever(
    project: Project, flow: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(Replays):
        """The stream is removed as soon as its replay is watched."""

        def progress(self, stream: str) -> Progress | None:
            found = super().progress(stream)
            remove_stream(flow.store, stream)
            return found

    monkeypatch.setattr("tailrace.streams.replay.Replays", Watched)
    ended = project.run("replay", STREAM, "--from", FROM)
    assert ended.code == 1
    assert "cancelled: 0 changes; the stream was removed" in ended.out


def test_without_a_pipeline_the_request_waits_and_can_be_cancelled(
    project: Project, flow: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "WAIT_S", 0.0)
    ended = project.run("replay", STREAM, "--from", "0/0", "--rate", "5", "--key", "id=1")
    assert ended.code == 1 and "does it when it runs" in ended.out
    code, error, hint = project.run("replay", STREAM, "--from", FROM).failure
    assert code == 2 and "is under way" in error and "--cancel" in hint
    project.run("replay", STREAM, "--cancel")
    assert flow.serve().state == "cancelled"
    code, error, _ = project.run("replay", STREAM, "--cancel").failure
    assert code == 2 and "no replay" in error


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["other", "--from", FROM], "has delivered nothing"),
        ([STREAM, "--from", "yesterday"], "neither a time nor a position"),
        ([STREAM, "--from", TO, "--to", FROM], "after its end"),
        ([STREAM, "--from", "2999-01-01"], "in the future"),
        ([STREAM, "--from", FROM, "--key", "1"], "COLUMN=VALUE"),
        ([STREAM, "--to", TO, "--table", "public.orders"], "needs its beginning"),
        ([STREAM, "--cancel", "--from", FROM], "it has no --from"),
        ([STREAM, "--from", FROM, "--to-sink", "parquet"], "does not describe a sink"),
    ],
)
def test_f105_wrong_requests_are_refused_with_a_hint(
    project: Project, flow: Replayed, arguments: list[str], wrong: str
) -> None:
    code, error, hint = project.run("replay", *arguments).failure
    assert code == 2 and wrong in error and hint
    assert flow.replays.current(STREAM) is None


def test_failure_is_told_with_its_reason(project: Project, flow: Replayed, pipeline: None) -> None:
    ended = project.run("replay", STREAM, "--from", FROM, "--table", "public.none")
    assert ended.code == 1 and "failed: 0 changes; stream orders has no table" in ended.out


def test_secret_of_another_sink_is_a_reference(tmp_path: Path) -> None:
    environ = {"HOOK": "http://127.0.0.1/?token=x", "DSN": "postgresql://a:b@h/db", "HOST": "h"}
    for text in ("{type: webhook, url: '${HOOK}'}", "{type: postgres, dsn: '${DSN}'}"):
        assert read_other_sink(text, tmp_path, environ)
    literal = ["{type: webhook, url: 'http://h/'}", "{type: postgres, dsn: 'host=h'}"]
    literal.append(f"{{type: webhook, url: '${{HOOK}}', dead_letter_queue: {literal[0]}}}")
    literal.append("{type: postgres, dsn: 'postgresql://u:hunter2@${HOST}/db'}")
    literal.append("{type: webhook, url: 'https://${HOST}/?token=hunter2'}")
    for text in [*literal, "{type: webhook, url: '${HOOK}', secret: '${S:-pw}'}"]:
        with pytest.raises(ConfigError, match="is a secret"):
            read_other_sink(text, tmp_path, environ)


def seen(flow: Replayed, sink: dict[str, object], *, paused: bool = False) -> None:
    """A pipeline has seen the stream in SQL."""
    definition = Definition(("public.*",), sink)
    keep_roster(flow.store, [Kept(STREAM, Origin.SQL, definition, paused=paused, revision=2)])


def test_replay_of_a_paused_stream_says_that_it_waits(project: Project, flow: Replayed) -> None:
    seen(flow, {"type": "delta"}, paused=True)
    ended = project.run("replay", STREAM, "--from", FROM)
    assert ended.code == 1
    assert f"waits until the stream is resumed: tailrace stream resume {STREAM}" in ended.out
