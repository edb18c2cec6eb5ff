"""A redrive of many refused rows lets batches through between its portions."""

from __future__ import annotations

import threading

import pytest

from tailrace.sinks.letters import redrive
from tailrace.sinks.postgres import PostgresSink
from tests.capture.running import wait_until
from tests.sinks.harness import PostgresHarness
from tests.sinks.refused.killed_parking import BAD, NO_CHECK
from tests.sinks.refused.refusing import LetterStore, ask, checked, execute, letters, numbers
from tests.sinks.source import batch_of


def test_f097_batch_flows_between_two_portions_of_a_redrive_and_no_row_goes_back(
    copy: PostgresHarness, store: LetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "_LETTERS_AT_ONCE", 1)
    source, sink = checked(copy), copy.sink
    assert isinstance(sink, PostgresSink)
    for key in (1, 2, 3):
        source.update(key, n=BAD + key)
    source.insert(id=4, n=4)
    sink.write(batch_of(2, source.take()))
    assert len(letters(store)) == 3
    execute(copy, NO_CHECK)
    for key in (1, 3, 4):
        source.update(key, n=10 + key, unchanged=["doc"])
    batch = batch_of(3, source.take())
    writers: list[threading.Thread] = []
    seen: list[dict[int, int]] = []

    def step(name: str) -> None:
        if name == "redrive.after_send" and not writers:
            writers.append(threading.Thread(target=sink.write, args=[batch]))
            writers[0].start()
            wait_until(lambda: sink._lock.is_awaited)
        elif name == "redrive.before_send" and writers:
            seen.append(numbers(copy))

    monkeypatch.setattr(redrive, "failpoint", step)
    audit = ask(copy, store)
    writers[0].join()
    # Row 1 was free by then, row 4 always was, and row 3 waits behind what is refused of it.
    assert seen[0] == {1: 11, 2: 2, 3: 3, 4: 14}
    assert not letters(store) and not audit.failed
    assert copy.rows(source.relation) == source.expected()
