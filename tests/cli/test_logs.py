"""Log lines: short, on stderr, ours only."""

from __future__ import annotations

import logging
import re

import pytest

from tailrace.cli import logs


def test_a_line_is_a_time_and_a_phrase(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(verbose=False)
    logging.getLogger("tailrace.capture").info("segment sealed bytes=%d", 8)
    logging.getLogger("tailrace.capture").warning("slot at risk")
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d segment sealed bytes=8", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: slot at risk", second)


def test_others_are_heard_only_if_something_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(verbose=False)
    logging.getLogger("boto3").info("chatter")
    logging.getLogger("boto3").error("trouble")
    assert "chatter" not in (err := capsys.readouterr().err)
    assert "error: trouble" in err


def test_the_bridge_to_spark_is_heard_only_by_who_asks(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(verbose=False)
    logging.getLogger("py4j.clientserver").error("an exception in the python proxy")
    assert capsys.readouterr().err == ""
    logs.configure(verbose=True)
    logging.getLogger("py4j.clientserver").error("an exception in the python proxy")
    assert "python proxy" in capsys.readouterr().err


def test_verbose_adds_steps_and_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        try:
            raise OSError("disk")
        except OSError:
            logging.getLogger("tailrace").warning("cannot write", exc_info=True)
        logging.getLogger("tailrace").debug("step")

    logs.configure(verbose=False)
    fail()
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not logs.is_verbose()
    logs.configure(verbose=True)
    fail()
    err = capsys.readouterr().err
    assert "Traceback" in err and "debug: step" in err
    assert logs.is_verbose()
