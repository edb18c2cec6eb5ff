"""From the URL in the configuration to a store.

A bare path is refused rather than guessed at: `s3//bucket` would otherwise make a local directory
and fill it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tailrace.errors import ConfigError
from tailrace.storage.file import FileStore
from tailrace.storage.memory import MemoryStore
from tailrace.storage.object import SCHEMES, ObjectStore
from tailrace.storage.store import Store, is_key

_HINT: Final = "write file:<path>, s3://<bucket>/<prefix>, gs://…, az://… or memory:<name>"


def open_store(url: str) -> Store:
    """Open the store that `url` names; raises ConfigError.

    >>> open_store("file:///var/lib/tailrace/log").url
    'file:///var/lib/tailrace/log'
    """
    scheme, colon, rest = url.partition(":")
    match scheme.lower() if colon else "":
        case "file":
            return FileStore(_file_path(rest))
        case "memory" if is_key(rest):
            return MemoryStore.named(rest)
        case "memory":
            raise ConfigError("a memory store needs a plain name", hint=_HINT)
        case known if known in SCHEMES:
            return ObjectStore(url)
        case "":
            raise ConfigError("the store's URL has no scheme", hint=_HINT)
        case unknown:
            raise ConfigError(f"no store has the scheme {unknown!r}", hint=_HINT)


def _file_path(rest: str) -> Path:
    """The path of `file:path`, `file:/path` or `file:///path`; %XX means a character."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise ConfigError("a file URL names a path on this machine", hint=_HINT)
        rest = slash + path
    if not rest:
        raise ConfigError("the file URL has no path", hint=_HINT)
    return Path(unquote(rest)).expanduser()
