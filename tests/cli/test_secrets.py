"""What `tailrace run` leaves behind, says and shows of secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tailrace.sinks.letters.failure import Kind
from tests.capture.running import wait_until
from tests.cli.project import TIMEOUT_S, Project
from tests.server import Database
from tests.sinks.queue.servers import WebhookQueue, webhook

PASSWORD, SECRET, TOKEN = "hidden-password", "hidden-secret", "hidden-token"


def _command_lines() -> bytes:
    """Of all processes: everybody on the machine may read them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes())
        except OSError:
            continue  # it has just ended
    return b"\n".join(found)


@pytest.fixture
def hook() -> Iterator[WebhookQueue]:
    with webhook() as queue:
        yield queue


@pytest.mark.slow
def test_f120_no_secret_is_in_log_checkpoint_letters_tables_or_command_lines(
    project: Project, database: Database, hook: WebhookQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DSN", make_conninfo(database.dsn, password=PASSWORD))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("HOOK_TOKEN", TOKEN)
    sink = {
        "type": "webhook",
        "url": f"http://127.0.0.1:{hook.server.server_port}/in",
        "secret": "${HOOK_SECRET}",
        "headers": {"Authorization": "Bearer ${HOOK_TOKEN}"},
    }
    streams = f'streams: {{hook: {{tables: ["public.*"], sink: {json.dumps(sink)}}}}}'
    project.configure("${SOURCE_DSN}", more=streams)
    hook.faults.fail(2, Kind.POISON)
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with project.running("run") as run:
            run.await_line("streaming slot=")
            admin.execute("INSERT INTO t SELECT generate_series(1, 3)")
            run.await_line("message is a dead letter stream=hook")
            wait_until(lambda: len(hook.received()) >= 3, patience_s=TIMEOUT_S)
            lines = _command_lines()
            assert run.stop().code == 0, run.text
        rows = admin.execute("SELECT s::text FROM tailrace.streams AS s").fetchall()
    assert hook.headers[0]["Authorization"] == f"Bearer {TOKEN}", "they are in use"
    left = [path for path in project.directory.rglob("*") if path.is_file()]
    assert any("checkpoint" in str(path) or "offsets" in path.parts for path in left), left
    places = {str(path): path.read_bytes() for path in left}
    places |= {"said": run.text.encode(), "tailrace.streams": str(rows).encode(), "ps": lines}
    for hidden in (PASSWORD, SECRET, TOKEN):
        assert not [name for name, text in places.items() if hidden.encode() in text], hidden
