"""SIGINT and SIGTERM: the first is a wish, the second an order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tailrace.cli.signals import StopSignals

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@BOTH
def test_a_signal_sets_the_event(number: signal.Signals) -> None:
    with StopSignals() as stop:
        assert not stop.event.is_set()
        os.kill(os.getpid(), number)
        assert stop.event.wait(10)


@BOTH
def test_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


@BOTH
def test_the_second_signal_ends_a_process_that_does_not_listen(number: signal.Signals) -> None:
    script = (
        "import threading; from tailrace.cli.signals import StopSignals\n"
        "with StopSignals() as stop:\n"
        "    print('ready', flush=True)\n"
        "    stop.event.wait()\n"
        "    print('stopping', flush=True)\n"
        "    threading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        assert process.wait(10) == 128 + number


@pytest.mark.parametrize("is_told", [False, True])
def test_a_process_ends_soon_although_a_thread_of_a_pool_hangs(is_told: bool) -> None:
    script = (
        "import threading; from concurrent.futures import ThreadPoolExecutor\n"
        "from tailrace.cli.signals import end_soon\n"
        "ThreadPoolExecutor(1).submit(threading.Event().wait)\n"
        f"end_soon(0.1) if {is_told} else None\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            assert process.wait(10 if is_told else 2) == 1
        except subprocess.TimeoutExpired:
            assert not is_told, "Python waits for it"
            process.kill()
