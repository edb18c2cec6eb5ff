"""A stream is the same whether the pipeline reads it in the file or in the control schema."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import pytest

from tailrace.cli.config import Config, parse
from tailrace.cli.definitions import HIDDEN, declared, resolve
from tailrace.control.streams import Definition, Origin
from tailrace.errors import ConfigError
from tailrace.storage import MemoryStore
from tailrace.streams.kept_roster import Kept, keep_roster, read_roster

ENVIRON: Final = {"HOOK": "https://example/t0ken", "TABLE": "orders", "PW": "hunter2"}
TEXT: Final = """
streams:
  lake: {}
  paid:
    tables: ["public.${TABLE}"]
    where: status = 'paid'
    columns: [id, status]
    key: [id]
    trigger_interval: 1s
    max_bytes_per_batch: 8MiB
    sink: {type: delta, path: ./paid, mode: append, vacuum_after: 3d}
    verify: {every: 2d}
  hook:
    sink:
      type: webhook
      url: ${HOOK}
      secret: hunter2
      headers: {Authorization: "Bearer ${PW}", X-Plain: "${PW}"}
      dead_letter_queue: {type: webhook, url: "${HOOK}", secret: hunter2}
  copy: {sink: {type: postgres, dsn: "postgresql://ann:hunter2@db/shop", schema: s}}
"""


@pytest.fixture
def config() -> Config:
    return parse(TEXT, root=Path("/work"), environ=ENVIRON)


def test_every_stream_of_the_file_comes_back_as_it_was(config: Config) -> None:
    for kept in declared(config):
        assert resolve(config, kept, ENVIRON) == config.streams[kept.name], kept.name


def test_f120_no_secret_leaves_the_file(config: Config) -> None:
    definitions = {kept.name: kept.definition for kept in declared(config)}
    shown = json.dumps({name: asdict(each) for name, each in definitions.items()})
    assert "hunter2" not in shown and "t0ken" not in shown and "Bearer" not in shown
    assert definitions["hook"].sink["url"] == "${HOOK}"
    assert definitions["hook"].sink["secret"] == HIDDEN
    assert definitions["hook"].sink["headers"] == {"Authorization": HIDDEN, "X-Plain": "${PW}"}
    dead = {"type": "webhook", "url": "${HOOK}", "secret": HIDDEN}
    assert definitions["hook"].sink["dead_letter_queue"] == dead
    assert definitions["copy"].sink == {"type": "postgres", "dsn": HIDDEN, "schema": "s"}


def test_a_stream_of_sql_is_read_as_the_file_would_be(config: Config) -> None:
    definition = Definition(("public.orders",), {"type": "delta", "path": "./own"})
    kept = Kept("own", Origin.SQL, definition, paused=False, revision=1)
    assert resolve(config, kept, {}).sink.model_dump()["path"] == "/work/own"
    bad: list[tuple[Definition, str]] = [
        (replace(definition, sink={"type": "delta", "pth": "x"}), "sink.pth"),
        (replace(definition, sink={"type": "webhook", "url": "${NONE}"}), "NONE, which is not set"),
        (replace(definition, sink={"type": "webhook", "url": HIDDEN}), "does not have it"),
        (replace(definition, where="a ="), "where"),
        (replace(definition, options={"verify": {}}), "verify needs a stream of the"),
    ]
    for wrong, words in bad:
        with pytest.raises(ConfigError, match=words) as raised:
            resolve(config, replace(kept, definition=wrong), {})
        assert "stream own" in str(raised.value)


def test_the_roster_is_kept_whole(config: Config) -> None:
    store, streams = MemoryStore(), declared(config)
    assert read_roster(store) is None
    for _ in range(4):
        keep_roster(store, [])
    keep_roster(store, streams)
    assert read_roster(store) == streams
    assert len(store.list("roster/")) == 2
