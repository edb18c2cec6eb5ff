"""The driver of the pipeline dies, at any step and at any moment: nothing is lost or doubled."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from tests.capture.running import wait_until
from tests.nursery import KILLED
from tests.spark.made_log import MadeLog, Table
from tests.streams.killing import Driver
from tests.streams.running import PATIENCE_S, lake_rows


class Life:
    """A table that changes, and how often it has."""

    def __init__(self, log: MadeLog) -> None:
        self.table = Table()
        self.change_count = 0
        self._log = log
        self._key = 0

    def go_on(self, times: int) -> None:
        """So many times three transactions of six changes."""
        for _ in range(times):
            table, key = self.table, self._key + 1
            self._log.insert(table, key, 3)
            self._log.commit(table, table.update(key, key, "new", None), table.delete(key + 1))
            self._log.commit(table, table.update(key + 2, -key, "moved", None))
            self._key += 3
            self.change_count += 6


@pytest.fixture
def life(log: MadeLog) -> Life:
    return Life(log)


PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Fetched by Spark itself, as for a user who names it; other tests have `tests.jars`."""

POINTS = [
    *("batch.before_fix", "batch.before_write", "batch.after_write", "batch.after_finish"),
    *("delta.before_commit", "delta.after_commit"),
]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_f081_death_at_each_step_of_a_batch(
    log: MadeLog, life: Life, tmp_path: Path, point: str
) -> None:
    driver = Driver(log, tmp_path)
    life.go_on(3)
    driver.die(f"{point}:4")
    life.go_on(2)
    driver.finish()
    driver.check(life.table, life.change_count)


LOAD_POINTS = ["load.before_fix", "load.before_write", "load.after_write", "load.after_finish"]


@pytest.mark.slow
@pytest.mark.parametrize("point", LOAD_POINTS)
def test_f021_death_at_each_step_of_a_load(
    log: MadeLog, life: Life, tmp_path: Path, point: str
) -> None:
    driver = Driver(log, tmp_path)
    life.go_on(1)
    # The second load is that of the other stream.
    driver.die(f"{point}:2")
    life.go_on(1)
    driver.finish()
    driver.check(life.table, life.change_count)


@pytest.mark.slow
@pytest.mark.parametrize("point", LOAD_POINTS)
def test_f021_death_at_each_step_of_a_new_generation(
    log: MadeLog, life: Life, tmp_path: Path, point: str
) -> None:
    driver = Driver(log, tmp_path)
    life.go_on(1)
    driver.finish()
    log.base_of(life.table)
    life.go_on(1)
    driver.die(point)
    driver.finish()
    assert lake_rows(tmp_path / "lake") == life.table.rows


@pytest.mark.server
@pytest.mark.slow
def test_f081_driver_that_dies_in_a_batch_and_at_any_moment_loses_and_doubles_nothing(
    log: MadeLog, life: Life, tmp_path: Path
) -> None:
    driver = Driver(log, tmp_path)
    life.go_on(3)
    assert driver.run(failpoint="batch.after_write:3") == KILLED, driver.output
    life.go_on(5)
    goal = Random().randrange(driver.position, log.end.commit_lsn)
    with driver.start() as process:
        wait_until(lambda: driver.position > goal or process.poll(), patience_s=PATIENCE_S)
        assert process.poll() is None, driver.output
        process.send_signal(signal.SIGKILL)
    life.go_on(1)
    # Asked to end, it ends in order, and so does all that it has started.
    with driver.start() as process:
        wait_until(lambda: driver.position == log.end.commit_lsn, patience_s=PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, driver.output
    driver.check(life.table, life.change_count)


@pytest.mark.spark
@pytest.mark.server
@pytest.mark.slow
def test_f081_death_of_the_driver_with_delta_on_spark(
    log: MadeLog, life: Life, tmp_path: Path
) -> None:
    # Every batch takes such a small machine seconds, so there are few.
    driver = Driver(log, tmp_path, packages=(PACKAGE,), changes_max=6)
    life.go_on(2)
    assert driver.run(failpoint="delta.after_commit:3") == KILLED, driver.output
    life.go_on(1)
    # What one engine has recorded, the other reads.
    driver.finish()
    driver.check(life.table, life.change_count)
