"""Buckets that are missing, closed or away; and secrets that stay where they belong."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.errors import ConfigError, StoreError
from tailrace.storage import ObjectExists, ObjectMissing, ObjectStore, Store
from tests.s3 import make_bucket, set_policy

CALLS: dict[str, Callable[[Store], object]] = {
    "put_new": lambda store: store.put_new("a", b"x"),
    "get": lambda store: store.get("a"),
    "range": lambda store: store.get("a", start=1, length=1),
    "list": lambda store: store.list("a/"),
    "delete": lambda store: store.delete(["a", "b"]),
}


def closed_port() -> int:
    """A loopback port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_is_not_a_missing_object(s3_endpoint: str, call: str) -> None:
    with pytest.raises(StoreError, match="NoSuchBucket") as caught:
        CALLS[call](ObjectStore("s3://no-such-bucket/log"))
    assert not isinstance(caught.value, ObjectMissing)
    assert not caught.value.retry
    assert "make the bucket" in caught.value.hint


# moto asks no policy about listing.
@pytest.mark.parametrize("call", [call for call in CALLS if call != "list"])
def test_denied_access_points_to_the_credentials(s3_endpoint: str, call: str) -> None:
    make_bucket(s3_endpoint, "closed")
    set_policy(s3_endpoint, "closed", "Deny")
    with pytest.raises(StoreError, match=r"403 Forbidden|AccessDenied") as caught:
        CALLS[call](ObjectStore("s3://closed/log"))
    assert not caught.value.retry
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize("call", ["put_new", "list"])
def test_an_endpoint_that_is_away_is_worth_another_try(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(StoreError) as caught:
        CALLS[call](ObjectStore("s3://log/x"))
    assert caught.value.retry
    assert "endpoint" in caught.value.hint
    assert "test-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_credentials_at_all_point_to_the_environment(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(StoreError) as caught:
        ObjectStore("s3://log/x").get("a")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_retry_that_meets_its_own_object_is_told_that_it_exists(s3_url: str) -> None:
    ObjectStore(s3_url).put_new("a", b"x")
    with pytest.raises(ObjectExists):
        ObjectStore(s3_url).put_new("a", b"x")


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "s3://secret@b/x", "s3://b/x?secret"])
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ObjectStore(url)
    assert "secret" not in str(caught.value) + caught.value.hint
    assert "environment" in caught.value.hint


def test_plain_http_is_spoken_to_this_machine_only(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio.example:9000")
    with pytest.raises(ConfigError, match="plain http") as caught:
        ObjectStore("s3://log/x")
    assert "https" in caught.value.hint
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    ObjectStore("s3://log/x")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    assert ObjectStore("s3://log/nothing").list("") == []


def test_objects_of_other_prefixes_are_not_seen(s3_url: str, tmp_path: Path) -> None:
    store, longer = ObjectStore(f"{s3_url}/a/"), ObjectStore(f"{s3_url}/ab")
    store.put_new("1", b"x")
    longer.put_new("2", b"x")
    assert [entry.key for entry in store.list("")] == ["1"]
    assert store.url == f"{s3_url}/a"
    whole = ObjectStore(s3_url)
    assert [entry.key for entry in whole.list("")] == ["a/1", "ab/2"]
