"""Commits of a local lake, made to outlive a power cut.

Neither Delta library syncs what it writes to local files; an object store has synced what it has
answered. So after each commit, and before a batch counts as delivered, its files are synced here.
A cut before that may leave a commit in the log whose files are torn: the table then cannot be read,
which is loud, and nothing was reported as delivered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from tailrace.errors import SinkError
from tailrace.sinks.delta.commit import Commit

Action: TypeAlias = dict[str, dict[str, Any]]


def sync_commits(uri: str, commit: Commit) -> None:
    """Sync the newest commits, back to one that the commit's application has made before it.

    What lies between may be another's, or the table's upkeep: rows stand in its files as well.
    Raises SinkError, not to be retried: after a failed sync the system may have dropped the
    bytes, and a second one succeeds all the same.
    """

    def is_older(actions: list[Action]) -> bool:
        versions = [a["txn"]["version"] for a in actions if _is_by(a, commit.app_id)]
        return any(version < commit.version for version in versions)

    _sync_until(uri, lambda _, actions: is_older(actions))


def sync_from(uri: str, version: int) -> None:
    """Sync the newest commits, back to this version. Raises SinkError, not to be retried."""
    _sync_until(uri, lambda number, _: number <= version)


def _sync_until(uri: str, is_last: Callable[[int, list[Action]], bool]) -> None:
    table = _directory(uri)
    if table is None:
        return
    try:
        for commit in sorted(table.glob("_delta_log/[0-9]*.json"), reverse=True):
            if is_last(int(commit.stem), _sync_commit(table, commit)):
                break
        # A new table has new directories above it: its own, its schema's, the lake's.
        for directory in (table / "_delta_log", table, *list(table.parents)[:3]):
            _sync(directory)
    except OSError as error:
        raise SinkError(
            f"the lake table at {uri} cannot be synced to its disk",
            hint="check the disk and the table's last files before the stream goes on",
        ) from error


def _directory(uri: str) -> Path | None:
    """Where the table is, if that is on this machine; a file may be named by a URL as well."""
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


def _sync_commit(table: Path, commit: Path) -> list[Action]:
    """Sync one commit; what it does."""
    actions: list[Action] = [json.loads(line) for line in commit.read_bytes().splitlines()]
    for path in [action["add"]["path"] for action in actions if "add" in action]:
        if (file := table / unquote(path)).exists():
            _sync(file)
    _sync(commit)
    return actions


def _is_by(action: Action, app_id: str) -> bool:
    return "txn" in action and action["txn"]["appId"] == app_id


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
