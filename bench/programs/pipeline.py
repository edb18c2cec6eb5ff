"""The real pipeline, from a log to Delta tables, beside a capture that another process runs.

Says `ready` when the stream has delivered up to `ready_at`, which also has warmed everything up,
and `done` when it has delivered up to `end`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from bench.programs.talk import say, stop_with_parent, task
from tailrace.sinks import open_sink
from tailrace.spark.session import spark_session
from tailrace.storage import open_store
from tailrace.streams import Pipeline, Stream

_POLL_S = 0.02


def main() -> None:
    """Run until told to stop."""
    wanted = task()
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = stop_with_parent()
    work_dir = Path(wanted["work_dir"])
    spark = spark_session(
        master=f"local[{wanted['cores']}]", app_name="tailrace bench", work_dir=work_dir
    )
    try:
        sink = {"type": "delta", "path": wanted["lake"], "mode": wanted["mode"]}
        stream = Stream("lake", wanted["tables"], lambda _: open_sink(sink, session=spark))
        pipeline = Pipeline([stream], spark, open_store(wanted["log"]), work_dir=work_dir)
        positions = [("ready", wanted["ready_at"]), ("done", wanted["end"])]
        watch = threading.Thread(target=_watch, args=(pipeline, positions, stop), daemon=True)
        watch.start()
        pipeline.run(stop)
    finally:
        spark.stop()


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
            memory_mb=_session_memory_mb(),
        )


def _session_memory_mb() -> float:
    """The sum of the most memory that each process of this session ever had: driver, JVM, workers.

    Pages that workers share with the process they were forked from count more than once.
    """
    ours = os.getsid(0)
    total_kb = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getsid(int(status.parent.name)) == ours:
                found = [line for line in status.read_text().splitlines() if "VmHWM" in line]
                total_kb += int(found[0].split()[1]) if found else 0
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has just ended
    return total_kb * 1024 / 1e6


if __name__ == "__main__":
    main()
