"""`tailrace stream`: a stream ends only when nothing is to deliver it any more."""

from __future__ import annotations

from tailrace.log.retention import put_reader_position, reader_positions
from tailrace.model import Lsn
from tests.cli.project import Project
from tests.log.making import begin

UNREACHABLE = "host=127.0.0.1 port=1 dbname=none"


def test_a_stream_is_removed_once_it_is_not_configured(project: Project) -> None:
    project.configure(UNREACHABLE)
    begin(project.store)
    for name in ("lake", "old"):
        put_reader_position(project.store, name, Lsn(0x1000))
    code, error, _ = project.run("stream", "rm", "lake").failure
    assert (code, error) == (2, "stream lake is configured")
    code, error, hint = project.run("stream", "rm", "odl").failure
    assert (code, error, hint) == (2, "the log knows no stream odl", "one of: lake, old")
    assert "old" in project.run("status").out
    assert project.run("stream", "rm", "old").code == 0
    assert list(reader_positions(project.store)) == ["lake"]
