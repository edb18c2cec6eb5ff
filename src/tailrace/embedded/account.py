"""Whom Postgres runs as, and what that account can reach.

Postgres refuses to run as root. Started by root, it runs as the owner of its data directory, or as
`nobody` for a new one. Started by anyone else, it runs as that user, and nothing here has an
effect.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Account:
    """A user and group to run a program as; negative numbers mean the present ones."""

    uid: int = -1
    gid: int = -1

    @classmethod
    def for_cluster(cls, data_dir: Path) -> Account:
        """The account that is to run Postgres on `data_dir`, which may not exist yet."""
        if os.geteuid() != 0:
            return cls()
        if data_dir.exists() and (owner := data_dir.stat()).st_uid != 0:
            return cls(owner.st_uid, owner.st_gid)
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise ConfigError(
                "postgres does not run as root, and this machine has no user nobody",
                hint="start as an ordinary user, or add a user named nobody",
            ) from None
        return cls(nobody.pw_uid, nobody.pw_gid)

    @property
    def is_other(self) -> bool:
        """Whether this is not the account that we run as."""
        return self.uid >= 0

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a short program to its end as this account."""
        try:
            return subprocess.run(
                command,
                cwd="/",  # ours may be closed to this account
                env=env,
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                user=self.uid if self.is_other else None,
                group=self.gid if self.is_other else None,
                extra_groups=[] if self.is_other else None,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot run {command[0]} as user {self.uid}: {error.strerror}",
                hint="start as an ordinary user",
            ) from error

    def can_enter(self, directory: Path) -> bool:
        """Whether this account reaches what is in `directory`: asked, not worked out from modes."""
        return not self.is_other or self.run(["test", "-x", directory]).returncode == 0

    def give(self, path: Path) -> None:
        """Make this account the owner of `path`."""
        if not self.is_other:
            return
        try:
            os.chown(path, self.uid, self.gid)
        except OSError as error:
            raise ConfigError(
                f"cannot give {path} to user {self.uid}: {error.strerror}",
                hint="start as an ordinary user, or name a directory on a local disk",
            ) from error
