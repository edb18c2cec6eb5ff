"""Commits of a local lake, made to outlive a power cut.

Neither Delta library syncs what it writes to local files; an object store has synced what it has
answered. So after each commit, and before a batch counts as delivered, its files are synced here.
A cut before that may leave a commit in the log whose files are torn: the table then cannot be read,
which is loud, and nothing was reported as delivered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import unquote

from tailrace.errors import SinkError


def sync_to_last_record(uri: str, app_id: str) -> None:
    """Sync the newest commits, back to the one that holds the application's last record.

    Raises SinkError, not to be retried: after a failed sync the system may have dropped the
    bytes, and a second one succeeds all the same.
    """
    if "://" in uri:
        return
    table = Path(uri)
    try:
        for commit in sorted(table.glob("_delta_log/[0-9]*.json"), reverse=True):
            if _sync_commit(table, commit, app_id):
                break
        # A new table has new directories above it: its own, its schema's, the lake's.
        for directory in (table / "_delta_log", table, *list(table.parents)[:3]):
            _sync(directory)
    except OSError as error:
        raise SinkError(
            f"the lake table at {uri} cannot be synced to its disk",
            hint="check the disk and the table's last files before the stream goes on",
        ) from error


def _sync_commit(table: Path, commit: Path, app_id: str) -> bool:
    """Sync one commit; whether it holds a record of the application."""
    actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    for path in [action["add"]["path"] for action in actions if "add" in action]:
        if (file := table / unquote(path)).exists():
            _sync(file)
    _sync(commit)
    return any(action["txn"]["appId"] == app_id for action in actions if "txn" in action)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
