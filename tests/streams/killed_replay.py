"""Programs that carry a replay out, and that follow the wishes for replays in SQL, for tests that
kill them on the way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from tailrace.control.streams import read_streams
from tailrace.postgres.session import connect
from tailrace.sinks import Sink, open_sink
from tailrace.storage import Store, open_store
from tailrace.streams.replay.by_sql import ReplaysBySql
from tests.streams.replaying import Replayed

SOURCE = "tailrace_main"
CHANGES_MAX = 2


def flow_to(store: Store, options: Mapping[str, object]) -> Replayed:
    """A stream in small batches to the sink that has these options."""

    def opened(name: str) -> Sink:
        return open_sink(options, store=store, stream=name)

    return Replayed(store, opened, changes_max=CHANGES_MAX)


def serve(log: str, options: str) -> None:
    """Carry out the request that is there."""
    os.environ.update(NO_PROXY="127.0.0.1", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    flow_to(open_store(log), json.loads(options)).serve()


def follow(log: str, dsn: str) -> None:
    """Do once what the rows of streams ask for next."""
    replays = ReplaysBySql(open_store(log), SOURCE)
    with connect(dsn) as conn:
        for row in read_streams(conn, SOURCE):
            replays.follow(conn, row)
