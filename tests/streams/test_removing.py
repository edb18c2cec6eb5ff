"""What was on its way for a stream ends with it: a stream that gets its name has another sink."""

from __future__ import annotations

from contextlib import closing

import pytest

from tailrace.sinks.letters.dead_letter import DeadLetters
from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.letters.redrive import Request, Requests
from tailrace.sinks.queue.outbox import count_copies
from tailrace.storage import MemoryStore
from tailrace.streams.removing import remove_stream
from tailrace.streams.replay.keys import record_name
from tests.sinks.queue.servers import open_queue, webhook
from tests.spark.made_log import MadeLog, Table
from tests.streams.by_hand import STREAM, Run

REDRIVE = Request("1", "redrive", (), "an operator")


def test_messages_and_copies_of_a_removed_stream_do_not_go_to_one_of_its_name() -> None:
    log, table = MadeLog(MemoryStore()), Table()
    log.insert(table, 1, 2)
    with webhook() as old, webhook() as dead, webhook() as new, webhook() as copies:
        old.faults.fail(1, Kind.POISON)
        dead.faults.is_down = True
        with closing(open_queue(old, log.store, stream=STREAM, dead=dead)) as sink:
            Run(log.store, sink).to_end()
            Requests(log.store, STREAM).ask(REDRIVE)
        assert count_copies(log.store, STREAM)
        remove_stream(log.store, STREAM)
        with closing(open_queue(new, log.store, stream=STREAM, dead=copies)) as sink:
            sink.serve_requests()
        assert not new.received() and not copies.received()
    audit = Requests(log.store, STREAM).audit(REDRIVE.id)
    assert audit is not None and audit.error == "the stream was removed"
    assert DeadLetters(log.store, STREAM).names(), "letters are a person's to decide about"


@pytest.mark.parametrize("name", [STREAM, record_name(STREAM)])
def test_request_that_cannot_be_read_does_not_outlive_its_stream(name: str) -> None:
    log = MadeLog(MemoryStore())
    requests = Requests(log.store, name)
    requests.ask(REDRIVE)
    damaged = requests._key(REDRIVE).replace("1.json", "0.json")
    log.store.put_new(damaged, b"{")
    remove_stream(log.store, STREAM)
    assert not requests.pending()
