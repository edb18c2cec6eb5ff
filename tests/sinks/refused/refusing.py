"""A table that refuses rows, and what waits of it among the dead letters."""

from __future__ import annotations

import json
import time
from typing import Literal

from tailrace.errors import StoreError
from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.letter import Letter
from tailrace.sinks.letters.redrive import Audit, Request, Requests
from tailrace.sinks.postgres import PostgresSink
from tailrace.storage import Data, MemoryStore, Store
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.killed_parking import CHECK, STREAM
from tests.sinks.source import Source, batch_of


class LetterStore(MemoryStore):
    """Takes no dead letters while `is_full`; takes them and does not say so if it `is_mute`."""

    is_full = False
    is_mute = False

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        if self.is_full and "/letters/" in key:
            raise StoreError("no space left")
        super().put_new(key, data, is_bulk=is_bulk)
        if self.is_mute and "/letters/" in key:
            raise StoreError("no answer")


def execute(copy: PostgresHarness, *statements: str) -> None:
    with copy.database.connect() as conn:
        for statement in statements:
            conn.execute(statement.encode())


def checked(copy: PostgresHarness, *statements: str) -> Source:
    """A table that refuses what is too large, with three rows."""
    source = Source()
    copy.sink.prepare(source.relation)
    execute(copy, *(statements or (CHECK,)))
    for key in (1, 2, 3):
        source.insert(id=key, part=f"part {key}", doc=f"large {key}", n=key)
    copy.sink.write(batch_of(1, source.take()))
    return source


def letters(store: Store) -> list[Letter]:
    kept = DeadLetters(store, STREAM)
    return [kept.read(name) for name in kept.waiting()]


def shown(store: Store) -> list[tuple[str, str, bool]]:
    """Of each letter the key, what it does and whether it was refused itself."""
    return [
        (json.loads(each.key)["id"], json.loads(each.payload)["op"], bool(each.error))
        for each in letters(store)
    ]


def ask(
    copy: PostgresHarness,
    store: Store,
    action: Literal["redrive", "discard"] = "redrive",
    *events: str,
) -> Audit:
    """Let the sink carry out a request, about the letters with these event ids or about all."""
    assert isinstance(copy.sink, PostgresSink)
    kept = DeadLetters(store, STREAM)
    keys = [name.key for name in kept.names() if kept.read(name).event_id in events]
    request = Request.new(action, keys, who="test", now=time.time())
    requests = Requests(store, STREAM)
    requests.ask(request)
    copy.sink.serve_requests()
    audit = requests.audit(request.id)
    assert audit is not None
    return audit


def numbers(copy: PostgresHarness) -> dict[int, int]:
    """By key, what the target has."""
    with copy.database.connect() as conn:
        return dict(conn.execute("SELECT id, n FROM orders").fetchall())


def ask_of(sink: PostgresSink, store: Store) -> None:
    Requests(store, STREAM).ask(Request.new("redrive", [], who="test", now=0.0))
    sink.serve_requests()
