"""A cluster on disk: made once by initdb, configured anew at every start.

A cluster is made beside its place and renamed into it, so that a data directory is whole or absent,
whenever we die.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tailrace.embedded.account import Account
from tailrace.embedded.place import cluster_dir
from tailrace.errors import ConfigError

_LOCALES = {
    16: ["--locale=C.UTF-8"],
    18: ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"],
}

_DEFAULTS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "60",
    "max_worker_processes": "4",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_checkpoints": "off",
}
"""Settings for one small machine on which logical decoding must work."""


def ensure(
    data_dir: Path, *, version: int, bin_dir: Path, account: Account, lock: int, sync: bool
) -> Path:
    """Make the cluster if there is none, and return the directory that really holds it."""
    if data_dir.is_symlink() and not data_dir.exists():
        raise ConfigError(
            f"{data_dir} is a link to a postgres that is gone: {os.readlink(data_dir)}",
            hint="remove the link to start with an empty database",
        )
    if not data_dir.exists() or not any(data_dir.iterdir()):
        return _create(
            data_dir, version=version, bin_dir=bin_dir, account=account, lock=lock, sync=sync
        )
    try:
        found = int((data_dir / "PG_VERSION").read_text())
    except (FileNotFoundError, ValueError):
        raise ConfigError(
            f"{data_dir} is not a postgres data directory", hint="name an empty or absent directory"
        ) from None
    if found != version:
        raise ConfigError(
            f"{data_dir} was made by postgres {found}, not {version}",
            hint=f"ask for version {found}, or name another directory",
        )
    return data_dir.resolve()


def configure(directory: Path, settings: Mapping[str, str], account: Account) -> None:
    """Write the whole configuration; what ALTER SYSTEM has set still wins over it."""
    lines = ["# Written by Tailrace at every start. Use ALTER SYSTEM for lasting changes."]
    for name, value in {**_DEFAULTS, **settings}.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name) or re.search(r"[\r\n\0]", value):
            raise ConfigError(
                f"not a postgres setting: {name}", hint="give a name and a value of one line"
            )
        quoted = value.replace("\\", "\\\\").replace("'", "''")
        lines.append(f"{name} = '{quoted}'")
    path = directory / "postgresql.conf"
    path.write_text("\n".join(lines) + "\n")
    account.give(path)


def environment() -> dict[str, str]:
    """The variables Postgres runs with: none of libpq's, which would change what it does."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("PG")}, "LC_ALL": "C"}


def _create(
    data_dir: Path, *, version: int, bin_dir: Path, account: Account, lock: int, sync: bool
) -> Path:
    place = cluster_dir(data_dir, account)
    draft = place.with_name(place.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    account.give(draft)
    result = account.run(
        [
            bin_dir / "initdb",
            f"--pgdata={draft}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            *_LOCALES[version],
            *([] if sync else ["--no-sync"]),
        ],
        env=environment(),
        pass_fds=[lock],  # if we are killed, nobody else comes near before it has ended
    )
    if result.returncode != 0:
        shutil.rmtree(draft, ignore_errors=True)
        raise ConfigError(f"initdb failed in {place}: {_last_line(result.stderr)}")
    draft.rename(place)
    if place != data_dir:
        if data_dir.exists():
            data_dir.rmdir()  # it was empty
        data_dir.symlink_to(place)
    return place


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    return lines[-1] if lines else text.strip()
