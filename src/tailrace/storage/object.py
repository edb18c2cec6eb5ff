"""Objects in a bucket: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

`put_new` is a conditional put (If-None-Match: *) answered with 200. One request may be repeated
inside a call, so the first try may have worked although its answer was lost, and the second then
finds our own object: this is reported as ObjectExists, and the writer of the log settles it by
reading who wrote it.

Credentials and endpoint come from the environment (AWS_*, GOOGLE_*, AZURE_*), never from the URL.
Plain HTTP is spoken to a loopback endpoint only, unless AWS_ALLOW_HTTP says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from tailrace.errors import ConfigError, StoreError
from tailrace.storage.answers import is_bucket_missing, reason, remedy
from tailrace.storage.store import (
    Data,
    Entries,
    Entry,
    ObjectExists,
    ObjectMissing,
    check_key,
    check_listing,
    check_prefix,
    check_range,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

SCHEMES: Final = ("s3", "gs", "az")

# A call ends within about two minutes, whatever the network does.
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_REQUEST_TIMEOUT: Final = timedelta(seconds=60)
_RETRY: Final[RetryConfig] = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_RANGE_REFUSED: Final = "416 Range Not Satisfiable"


class ObjectStore:
    """A `Store` below a prefix of a bucket."""

    def __init__(self, url: str) -> None:
        self._url = _checked(url)
        options: ClientConfig = {
            "connect_timeout": _CONNECT_TIMEOUT,
            "timeout": _REQUEST_TIMEOUT,
            "allow_http": _plain_http(urlsplit(url).scheme),
        }
        try:
            self._bucket = from_url(self._url, client_options=options, retry_config=_RETRY)
        except (BaseError, ValueError) as error:
            raise ConfigError(
                f"cannot open {self._url}: {reason(error)}",
                hint="the form is s3://bucket/prefix, and the environment says how to reach it",
            ) from error

    @property
    def url(self) -> str:
        """The URL of the bucket and prefix."""
        return self._url

    def __repr__(self) -> str:
        return f"ObjectStore({self._url!r})"

    def put_new(self, key: str, data: Data, *, is_bulk: bool = False) -> None:
        """See `Store.put_new`."""
        check_key(key)
        try:
            # In one request: only then is the condition checked with the write.
            obstore.put(self._bucket, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise ObjectExists(f"object {key} already exists in {self._url}") from error
        except (BaseError, OSError) as error:
            raise self._failure(f"write {key}", error) from error

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        check_key(key)
        check_range(start, length)
        try:
            if start == 0 and length is None:
                return bytes(obstore.get(self._bucket, key).bytes())
            return self._get_range(key, start, length)
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and not is_bucket_missing(error):
                raise ObjectMissing(f"no object {key} in {self._url}") from error
            raise self._failure(f"read {key}", error) from error

    def _get_range(self, key: str, start: int, length: int | None) -> bytes:
        # Object stores refuse a range that holds no byte; files and this protocol do not.
        if length == 0:
            obstore.head(self._bucket, key)
            return b""
        try:
            if length is None:
                found = obstore.get(self._bucket, key, options={"range": {"offset": start}})
                return bytes(found.bytes())
            return bytes(obstore.get_range(self._bucket, key, start=start, length=length))
        except BaseError as error:
            if _RANGE_REFUSED in str(error):
                return b""
            raise

    def list(self, prefix: str, *, after: str = "") -> Entries:
        """See `Store.list`; `after` is passed on, so that earlier keys are not even sent."""
        check_listing(prefix, after)
        try:
            found = obstore.list(self._bucket, prefix or None, offset=after or None).collect()
        except (BaseError, OSError) as error:
            raise self._failure(f"list {prefix}", error) from error
        entries = [
            Entry(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in found
        ]
        entries.sort(key=attrgetter("key"))
        return entries

    def sync(self, prefix: str) -> None:
        """See `Store.sync`: an object store shows only what is durable."""
        check_prefix(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`; in requests of many keys where the store has them."""
        keys = list(keys)
        for key in keys:
            check_key(key)
        try:
            obstore.delete(self._bucket, keys)
        except (BaseError, OSError) as error:
            if not isinstance(error, FileNotFoundError) or is_bucket_missing(error):
                raise self._failure("delete objects", error) from error
            self._delete_each(keys)

    def _delete_each(self, keys: Iterable[str]) -> None:
        """For the stores that stop at a key that is not there."""
        for key in keys:
            try:
                obstore.delete(self._bucket, key)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise self._failure(f"delete {key}", error) from error

    def _failure(self, action: str, error: Exception) -> StoreError:
        message = f"cannot {action} in {self._url}: {reason(error)}"
        if hint := remedy(error):
            return StoreError(message, hint=hint, retry=False)
        return StoreError(message, hint="check the endpoint and the network")


def _checked(url: str) -> str:
    """The URL without a slash at its end; refuses anything that could hold a secret."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"a {parts.scheme} URL holds a bucket and a prefix only",
            hint="give credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
        )
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise ConfigError("not the URL of a bucket", hint="the form is s3://bucket/prefix")
    return url.rstrip("/")


def _plain_http(scheme: str) -> bool:
    """Whether the endpoint is spoken to without TLS; refuses that across a network."""
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    if scheme != "s3" or endpoint.scheme != "http":
        return False
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"
    if not allowed and endpoint.hostname not in _LOOPBACK:
        raise ConfigError(
            "AWS_ENDPOINT_URL is plain http to another machine",
            hint="use https, or set AWS_ALLOW_HTTP=true on a network that you trust",
        )
    return True
