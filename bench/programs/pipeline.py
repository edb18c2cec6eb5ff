"""The real pipeline, from a log to Delta tables, beside a capture that another process runs.

Says `ready` when the stream has delivered up to `ready_at`, which also has warmed everything up,
and `done` when it has delivered up to `end`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from bench.programs.session import bench_session
from bench.programs.talk import say, stop_with_parent, task
from bench.programs.usage import session_memory_mb
from tailrace.sinks import open_sink
from tailrace.storage import open_store
from tailrace.streams import Pipeline, Stream

_POLL_S = 0.02


def main() -> None:
    """Run until told to stop."""
    wanted = task()
    stop = stop_with_parent()
    work_dir = Path(wanted["work_dir"])
    with bench_session(wanted["cores"], work_dir) as spark:
        sink = {"type": "delta", "path": wanted["lake"], "mode": wanted["mode"]}
        stream = Stream("lake", wanted["tables"], lambda _: open_sink(sink, session=spark))
        pipeline = Pipeline([stream], spark, open_store(wanted["log"]), work_dir=work_dir)
        positions = [("ready", wanted["ready_at"]), ("done", wanted["end"])]
        watch = threading.Thread(target=_watch, args=(pipeline, positions, stop), daemon=True)
        watch.start()
        pipeline.run(stop)


def _watch(pipeline: Pipeline, positions: list[tuple[str, int]], stop: threading.Event) -> None:
    for event, position in positions:
        while (delivered := pipeline.states[0].delivered) is None or (
            delivered.position.commit_lsn < position
        ):
            if stop.wait(_POLL_S):
                return
        say(
            event,
            at=time.monotonic(),
            batches=delivered.batch_count,
            changes=delivered.change_count,
            memory_mb=session_memory_mb(),
        )


if __name__ == "__main__":
    main()
